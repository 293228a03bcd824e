"""The files of an evaluation in a folder: writes them, and reads those of another evaluation.

`metrics.json`:

    {"schema": 2,
     "tfrank": "0.2.0",
     "about": {"model": "...", "images": 900, "classes": 5, "protocols": "...", "search": "exact", ...},
     "rankings": {"leave_one_out": {"recall_at_1": 0.99, ..., "queries": 900, "queries_without_positive": 0}},
     "galleries": {"leave_one_out": {"images": 900, "sha256": "of their ids and labels"}},
     "extras": {"dists_intra": 0.3, ...},
     "notes": ["..."],
     "models": {"leave_one_out": {"map": {"start": [0.4, 0.38, 0.42], ...}}}}

`models` has the mean of each compared model and its 95 % interval, whose ends are null if there are too few
classes for one. Metrics are shares from 0 to 1, except counts, and dists@intra and dists@inter, which go up
to 2.

`per_query/<ranking>.csv` has a line for each query: its id, its label and its metrics, empty for a query
without a positive. An id that a spreadsheet would read as a formula is prefixed with '.

`curves.json` has the curves of each ranking: {ranking: {curve: [x, y]}}.
"""

import contextlib
import csv
import glob
import os
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfrank.common import files, json_files
from tfrank.common.checks import InputError

SCHEMA = 2
# Curves of many rankings take much room.
MOST_BYTES = 2**28
_OBJECTS = json_files.dict_of(json_files.dict_of(json_files.anything))
_RESULTS = json_files.record(
    {"about": json_files.dict_of(json_files.anything), "rankings": _OBJECTS, "galleries": _OBJECTS},
    {"models": _OBJECTS},
    others=True,
)
COLUMNS = ("id", "label")
# The start of a cell that `as_text` has prefixed.
_FORMULA = re.compile(r"^'('*[=+\-@\t\r])")


class PerQuery(NamedTuple):
    """The per-query metrics of a ranking.

    Attributes:
        ids: `[queries]` text.
        labels: `[queries]` int64.
        metrics: `[queries]` float64 by name; NaN for a query without a positive.
    """

    ids: np.ndarray
    labels: np.ndarray
    metrics: dict[str, np.ndarray]


def write_results(
    folder: str,
    *,
    about: Mapping[str, Any],
    rankings: Mapping[str, Mapping[str, float]],
    galleries: Mapping[str, Mapping[str, Any]],
    extras: Mapping[str, float],
    notes: Sequence[str],
    per_query: Mapping[str, PerQuery],
    curves: Mapping[str, Mapping[str, Sequence]],
    version: str,
    models: Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]] = types.MappingProxyType({}),
) -> None:
    """Writes the files; `metrics.json` last, so that it never lies beside files of another evaluation."""
    files.make_folder(os.path.join(folder, "per_query"))
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, "metrics.json"))
    for path in glob.glob(os.path.join(glob.escape(folder), "per_query", "*.csv")):
        os.remove(path)
    for name, found in per_query.items():
        with files.atomic_write(_path_of(folder, name), "w") as file:
            # Quote text, since an id may contain line ends of any kind.
            lines = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
            lines.writerow([*COLUMNS, *found.metrics])
            columns = [["" if np.isnan(v) else v for v in c.tolist()] for c in found.metrics.values()]
            lines.writerows(zip(map(as_text, found.ids.tolist()), found.labels.tolist(), *columns))
    files.write_json(os.path.join(folder, "curves.json"), curves)
    tree = {
        "schema": SCHEMA,
        "tfrank": version,
        "about": dict(about),
        "rankings": {name: dict(row) for name, row in rankings.items()},
        "galleries": {name: dict(one) for name, one in galleries.items()},
        "extras": dict(extras),
        "notes": list(notes),
        "models": dict(models),
    }
    files.write_json(os.path.join(folder, "metrics.json"), tree)


def load_metrics(folder: str) -> dict[str, Any]:
    """Reads `metrics.json` of a folder.

    Raises:
        InputError: it is missing, damaged or of another schema.
    """
    tree, path = _load(folder, "metrics.json"), os.path.join(folder, "metrics.json")
    if tree.get("schema") != SCHEMA:
        raise InputError(
            f"{path} was not written by an evaluation, or has another schema ({tree.get('schema')!r}). Give"
            " the folder of an evaluation, such as RUN/evaluation/test, or evaluate again."
        )
    return json_files.checked(tree, _RESULTS, path, "Evaluate again.")


def load_curves(folder: str) -> dict[str, dict[str, list]]:
    """Reads `curves.json` of a folder; raises InputError if it is missing or damaged."""
    tree = _load(folder, "curves.json")
    try:
        for kinds in tree.values():
            for pair in kinds.values():
                shape = np.asarray(pair, np.float64).shape
                if len(shape) != 2 or shape[0] != 2 or not np.isfinite(pair).all():
                    raise ValueError(f"a curve of shape {shape}")
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{os.path.join(folder, 'curves.json')} is damaged ({error}). Evaluate again."
        ) from None
    return tree


def load_per_query(folder: str, ranking: str) -> PerQuery:
    """Reads `per_query/<ranking>.csv` of a folder; raises InputError if it is missing or damaged."""
    path = _path_of(folder, ranking)
    try:
        with open(path, newline="", encoding="utf-8") as file:
            head, *lines = csv.reader(file)
        if (*head[:2],) != COLUMNS:
            raise ValueError(f"its columns are {head}")
        ids, labels, *columns = zip(*lines, strict=True) if lines else [()] * len(head)
        if len(set(ids)) < len(ids):
            raise ValueError("an id is in it twice")
        values = [np.array([float(v) if v else np.nan for v in column]) for column in columns]
        return PerQuery(
            np.array([_FORMULA.sub(r"\1", one) for one in ids], str),
            np.array(labels, np.int64),
            dict(zip(head[2:], values, strict=True)),
        )
    except FileNotFoundError:
        raise InputError(
            f"There is no {path}: that evaluation has no ranking {ranking!r}. Evaluate again."
        ) from None
    except (OSError, ValueError, TypeError, OverflowError, csv.Error) as error:
        raise InputError(f"{path} is damaged ({error}). Evaluate again.") from None


def as_text(cell: str) -> str:
    """Returns a CSV cell that spreadsheets read as text: prefixes it with ' if it starts like a formula.

    A cell that starts with ' and then like a formula gets another ', so that the prefix can be undone.

    >>> as_text("=1+1"), as_text("a=b"), as_text("'-1")
    ("'=1+1", 'a=b', "''-1")
    """
    return f"'{cell}" if _FORMULA.match(f"'{cell}") else cell


def common_queries(ids: np.ndarray, other_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the common queries in both arrays, in the order of the first.

    >>> common_queries(np.array(["a", "b"]), np.array(["b", "c"]))
    (array([1]), array([0]))
    """
    _, rows, places = np.intersect1d(ids, other_ids, assume_unique=True, return_indices=True)
    order = np.argsort(rows)
    return rows[order], places[order]


def _load(folder, name):
    try:
        path, check = os.path.join(folder, name), json_files.dict_of(json_files.anything)
        return json_files.read(path, check, "Evaluate again.", most_bytes=MOST_BYTES)
    except FileNotFoundError:
        raise InputError(
            f"There is no evaluation in {folder} (no {name}). Give the folder of an evaluation, such as"
            " RUN/evaluation/test."
        ) from None


def _path_of(folder, ranking):
    return os.path.join(folder, "per_query", f"{ranking}.csv")
