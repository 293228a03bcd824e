"""Near copies of the images of a test set: a sentence before training; notes and pictures of a report."""

import contextlib
import itertools
import os
from collections.abc import Sequence

import numpy as np

from tfrank.data.index import RecordIndex
from tfrank.data.record_folder import DROPPED, NEAR_COPIES, Copy, folder_of, load_copies, open_split, shared
from tfrank.data.records import RecordReader
from tfrank.evaluation.report.charts import percent
from tfrank.evaluation.report.html_page import Grid, GridRow
from tfrank.run.datasets import Data
from tfrank.run.evaluation_results import EvaluationResults
from tfrank.run.pictures import Images

# Groups that a report shows, and copies of each.
GROUPS, COPIES = 12, 7
WORDS = "The same picture in another size, compression, brightness or crop, or shots of one burst."


def sentences_on_copies(data: Data) -> list[str]:
    """Returns a sentence on the near copies that test and validation have in the rest; [] if none has."""
    held_out = set() if data.validation is None else set(_names(data.validation))
    folder = folder_of(data.test)
    copies = [
        one._replace(split="validation") if one.split == "train" and one.id in held_out else one
        for one in (load_copies(folder) if folder == folder_of(data.train) else [])
    ]
    pairs = ("test", "train"), ("test", "validation"), ("validation", "train")
    found = [
        f"{len(some):,} of {of} in {other}" for of, other in pairs if (some := shared(copies, of, other))
    ]
    path = os.path.join(folder, NEAR_COPIES)
    return (
        [f"Photos that have a near copy elsewhere: {', '.join(found)}. {path} lists them."] if found else []
    )


def notes_on_copies(
    results: EvaluationResults, index: RecordIndex | None, copies: Sequence[Copy]
) -> list[str]:
    """Returns how Recall@1 of the main ranking changes without the queries that have a near copy."""
    found = results.main
    scores = found.per_query.get("recall_at_1")
    if not copies or scores is None or index is None:
        return []
    ids = np.array(_names(index), object)[results.images[found.queries]]
    notes = []
    for other in ("train", "test"):
        having = np.isin(ids, [one.id for one in shared(copies, "test", other)]) & np.isfinite(scores)
        without = np.isfinite(scores) & ~having
        if having.any():
            rest = f"{percent(scores[without].mean())} without them" if without.any() else "all queries do"
            notes.append(
                f"{_queries(having.sum())} a near copy in {other}. Recall@1 is"
                f" {percent(np.nanmean(scores))} with them, {rest}."
            )
    return notes


def grids_of_copies(index: RecordIndex | None, images: Images, copies: Sequence[Copy]) -> list[Grid]:
    """Returns pictures of near copies of test images, those that train has too first; [] if none."""
    copies = [one for one in (copies if images else []) if one.split != DROPPED]
    across = {one.group for one in shared(copies, "test", "train")}
    # Of each group a test image first.
    copies.sort(key=lambda one: (one.group not in across, one.group, not one.split.startswith("test")))
    groups = [list(some) for _, some in itertools.groupby(copies, key=lambda one: one.group)]
    groups = [some for some in groups if some[0].split.startswith("test") and len(some) > 1][:GROUPS]
    with contextlib.ExitStack() as stack:
        records = {}
        for split in {one.split for some in groups for one in some}:
            opened = open_split(folder_of(index), split)
            row_of = {name: row for row, name in enumerate(_names(opened))}
            records[split] = stack.enter_context(contextlib.closing(RecordReader(opened))), row_of

        def picture(copy, rank=None):
            reader, row_of = records[copy.split]
            (record,) = reader.read([row_of[copy.id]])
            return images.picture_of(record, caption=copy.label, file=f"{copy.split}: {copy.id}", rank=rank)

        rows = [
            GridRow(picture(first), [picture(one, rank) for rank, one in enumerate(others[:COPIES], 1)])
            for first, *others in groups
        ]
    return [Grid("Near copies", rows, WORDS)] if rows else []


def _queries(count):
    return "1 query has" if count == 1 else f"{count:,} queries have"


def _names(index):
    return [image.decode(errors="surrogateescape") for image in np.asarray(index.id).tolist()]
