"""The composition root of what is seen of images: pictures of records, rows of queries and neighbours."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from tfrank.data import records
from tfrank.data.index import RecordIndex
from tfrank.datasets import build_loader
from tfrank.evaluation.html_report import GridRow, Picture, thumbnail
from tfrank.evaluation.measure import Measured, rows_of
from tfrank.evaluation.metrics import main_metric, metric_title
from tfrank.evaluation.neighbors import exact
from tfrank.evaluation.protocols import UNKNOWN, text_of
from tfrank.measuring import Results

NEIGHBORS = 8


class Images:
    """What is shown of an image: the picture that the model sees, and the name of its class.

    Args:
        config: how images are loaded.
        results: what was measured.
        index: the records; None where embeddings came without images.
    """

    def __init__(self, config: ConfigDict, results: Results, index: RecordIndex | None):
        self._results, self._text = results, config.data.features.text
        self._reader = records.RecordReader(index) if index is not None else None
        self._loader = dataclasses.replace(build_loader(config), full_size=False)

    def __enter__(self) -> "Images":
        return self

    def __exit__(self, *_) -> None:
        if self._reader:
            self._reader.close()

    def __bool__(self) -> bool:
        return self._reader is not None

    def picture(self, row: int, **fields: Any) -> Picture:
        """The picture of a row of the results, as small as a page needs it."""
        image = self._loader.test(self._record(row)).numpy()
        return Picture(thumbnail(image), caption=self.name(row), **fields)

    def name(self, row: int) -> str:
        """The name of a row's class; of its image where it has no class."""
        label = int(self._results.test.labels[row])
        if label == UNKNOWN:
            return text_of(self._results.test.ids[row])
        text = records.class_text(self._record(row), self._text) if self else ""
        return text or f"class {label}"

    def class_name(self, label: int) -> str:
        """The name of a class."""
        return self.name(int(np.argmax(self._results.test.labels == label)))

    def _record(self, row):
        return self._reader.read([int(self._results.images[row])])[0]


def grid_rows(
    results: Results, found: Measured, ranking: str, queries: Sequence[int], images: Images
) -> list[GridRow]:
    """Some queries of a ranking and their nearest images by the embeddings.

    Args:
        results: what was measured.
        found: the ranking, one of a single split.
        ranking: its name.
        queries: their numbers in the split.
        images: the pictures.
    """
    split, metric = found.split, main_metric(found.per_query)
    gallery = rows_of(results.embeddings, split.gallery)
    # Ignored images take places that others are shown in.
    ignored = [split.truths[ranking].ignored(query) for query in queries]
    count = min(len(gallery), NEIGHBORS + max(map(len, ignored)))
    nearest = exact(results.embeddings[split.queries[queries]], gallery, count)
    rows = []
    for query, junk, places, near in zip(queries, ignored, nearest.index, nearest.similarity):
        shown = ~np.isin(places, junk)
        right = np.isin(places[shown], split.truths[ranking].positives(query))
        neighbors = [
            images.picture(split.gallery[place], correct=bool(hit), similarity=float(similarity), rank=rank)
            for rank, (place, hit, similarity) in enumerate(zip(places[shown], right, near[shown]), start=1)
            if rank <= NEIGHBORS
        ]
        note = f"{metric_title(metric)} {found.per_query[metric][query]:.3f}"
        rows.append(GridRow(images.picture(split.queries[query]), neighbors, note))
    return rows
