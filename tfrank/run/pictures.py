"""Pictures of records, and of queries with their neighbours: for the report, and for the log of training."""

from typing import Any

import numpy as np

from tfrank.common.ignore_labels import UNKNOWN
from tfrank.configs.sections import Data
from tfrank.data import records
from tfrank.data.images import ImageLoader
from tfrank.data.index import RecordIndex
from tfrank.evaluation.metric_names import metric_title
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.protocols import text_of
from tfrank.evaluation.ranking_results import rows_of
from tfrank.evaluation.report import curves
from tfrank.evaluation.report.html_page import Grid, GridRow
from tfrank.evaluation.report.neighbor_grid import neighbor_grid
from tfrank.evaluation.report.shown_image import ShownImage, shown_image
from tfrank.evaluation.retrieval_metrics import main_metric
from tfrank.run.datasets import build_loader
from tfrank.run.evaluation_results import EvaluationResults

QUERIES, NEIGHBORS = 8, 8
# For at most this many of the worst queries, the similarity of the wrong nearest image breaks ties.
MOST_SEARCHED = 2000


class Images:
    """Pictures and class names of test images. A picture shows the configured region, in its own proportions.

    It is false if there are no pictures: vectors have names alone.

    Args:
        data: the fields of `config.data`, which say how images are loaded.
        results: the results.
        index: the records; None if embeddings came without images.
    """

    def __init__(self, data: Data, results: EvaluationResults, index: RecordIndex | None):
        self._results, self._text = results, data.features.text
        self._reader = records.RecordReader(index) if index is not None else None
        loader = build_loader(data, full_size=True)
        self._loader = loader if isinstance(loader, ImageLoader) else None

    def __enter__(self) -> "Images":
        return self

    def __exit__(self, *_) -> None:
        if self._reader:
            self._reader.close()

    def __bool__(self) -> bool:
        return self._reader is not None and self._loader is not None

    def picture(self, row: int, **fields: Any) -> ShownImage:
        """Returns the picture of a row of the results, as small as a page needs it."""
        file = text_of(self._results.test.ids[row])
        return self.picture_of(self._record(row), caption=self.name(row), file=file, **fields)

    def picture_of(self, record: bytes, **fields: Any) -> ShownImage:
        """Returns the picture of a record, which may be of another split."""
        assert self._loader, "vectors have no pictures"
        return shown_image(self._loader.test(record).numpy(), **fields)

    def name(self, row: int) -> str:
        """Returns the class name of a row, or the image's id if it has no class."""
        label = int(self._results.test.labels[row])
        if label == UNKNOWN:
            return text_of(self._results.test.ids[row])
        text = records.class_text(self._record(row), self._text) if self._reader else ""
        return text or f"class {label}"

    def class_name(self, label: int) -> str:
        """Returns the name of a class. Images of the label -1 have none, and are of no one class."""
        if label == UNKNOWN:
            return "no known class"
        return self.name(int(np.argmax(self._results.test.labels == label)))

    def category_name(self, category: int) -> str:
        """Returns the name of a category."""
        row = int(np.argmax(self._results.test.category == category))
        text = records.category_text(self._record(row)) if self._reader else ""
        return text or f"category {category}"

    def _record(self, row):
        return self._reader.read([int(self._results.images[row])])[0]


def query_grids(results: EvaluationResults, images: Images) -> list[Grid]:
    """Returns grids of the worst, the best and some random queries; see `curves.choose_queries`.

    Args:
        results: the results; the main ranking is of a single task.
        images: the pictures.
    """
    found = results.main
    assert found.task, "a mean of several tasks has no queries to show"
    labels = found.task.labels and found.task.labels[0]
    scores = found.per_query[main_metric(found.per_query)]
    # Approximate search gives no ranks, only whether the nearest image is right.
    wrong = curves.wrong_on_top(found.first, NEIGHBORS) if found.first is not None else 1 - scores
    chosen = curves.choose_queries(
        scores, labels, wrong=wrong, similarity=_of_nearest(results, found.task, wrong), count=QUERIES
    )
    words = {
        "worst": "Most wrong images before the first right one. Ties: the most similar wrong nearest image"
        f" first. At most {curves.MOST_OF_A_CLASS} of a class.",
        "best": f"Highest {metric_title(main_metric(found.per_query))}.",
        "random": "Drawn at random, as typical examples.",
    }
    return [
        Grid(title.capitalize(), grid_rows(results, results.main_ranking, queries, images), words[title])
        for title, queries in chosen.items()
        if len(queries)
    ]


def _of_nearest(results, task, wrong):
    """Returns `[queries]` the similarity of the wrong nearest image for the worst queries; NaN for others."""
    order = np.random.default_rng(0).permutation(len(wrong))
    rows = order[np.argsort(-wrong[order], kind="stable")][:MOST_SEARCHED]
    rows, similarity = rows[wrong[rows] > 0], np.full(len(wrong), np.nan)
    if len(rows):
        gallery = rows_of(results.embeddings, task.gallery)
        queries = results.embeddings[task.queries[rows]]
        similarity[rows] = exact(queries, gallery, 1, task.self_index[rows]).similarity[:, 0]
    return similarity


def grid_rows(results: EvaluationResults, ranking: str, queries: np.ndarray, images: Images) -> list[GridRow]:
    """Returns rows of some queries and their nearest images, ranked by the embeddings.

    Args:
        results: the results.
        ranking: the name of a ranking of a single task.
        queries: indices of the queries in the task.
        images: the pictures.
    """
    found = results.rankings[ranking]
    task, metric = found.task, main_metric(found.per_query)
    assert task, "a mean of several tasks has no queries to show"
    gallery = rows_of(results.embeddings, task.gallery)
    # Search for more than are shown, since ignored images among them are skipped.
    ignored = [task.relevance[ranking].ignored(query) for query in queries]
    count = min(len(gallery), NEIGHBORS + max(map(len, ignored)))
    nearest = exact(results.embeddings[task.queries[queries]], gallery, count)
    rows = []
    for query, junk, places, near in zip(queries, ignored, nearest.index, nearest.similarity):
        shown = ~np.isin(places, junk)
        right = np.isin(places[shown], task.relevance[ranking].positives(query))
        neighbors = [
            images.picture(task.gallery[place], correct=bool(hit), similarity=float(similarity), rank=rank)
            for rank, (place, hit, similarity) in enumerate(zip(places[shown], right, near[shown]), start=1)
            if rank <= NEIGHBORS
        ]
        note = f"{metric_title(metric)} {found.per_query[metric][query]:.3f}"
        if found.first is not None:
            note += f", first right image at rank {int(found.first[query]):,}"
        rows.append(GridRow(images.picture(task.queries[query]), neighbors, note))
    return rows


def draw_neighbors(
    data: Data, embeddings: np.ndarray, labels: np.ndarray, index: RecordIndex, *, seed: int
) -> bytes | None:
    """Draws some random images of an index and their nearest neighbours; returns a PNG, None for vectors."""
    loader = build_loader(data)
    if not isinstance(loader, ImageLoader):
        return None
    queries = np.random.default_rng(seed).permutation(len(labels))[:QUERIES]
    nearest = exact(embeddings[queries], embeddings, NEIGHBORS, queries).index
    with records.RecordReader(index) as reader:

        def image_of(number):
            return loader.test(reader.read([number])[0]).numpy()

        def class_of(number):
            text = records.class_text(reader.read([number])[0], data.features.text)
            return text or f"class {labels[number]}"

        return neighbor_grid(image_of, queries, nearest, labels, class_of)
