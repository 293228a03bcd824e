"""What an evaluation leaves in a folder, and how another one finds it.

`metrics.json`:

    {"schema": 1,
     "tfrank": "0.1.0",
     "about": {"test set": "...", "images": 900, "model": "...", "search": "exact", ...},
     "rankings": {"leave_one_out": {"recall_at_1": 0.99, ..., "queries": 900, "lone_queries": 0}},
     "extras": {"dists_intra": 0.3, ...},
     "notes": ["..."]}

Metrics are shares from 0 to 1, but for counts and for dists@intra and dists@inter, which go up to 2. Beside
it, `per_query/<ranking>.csv` has a line for each query: its id, its label, and each of its metrics, empty for
a query without a positive.
"""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfrank import files
from tfrank.checks import InputError

SCHEMA = 1


class PerQuery(NamedTuple):
    """The metrics of the queries of a ranking.

    Attributes:
        ids: `[queries]` text.
        labels: `[queries]` int64.
        metrics: by name `[queries]` float64, NaN for a query without a positive.
    """

    ids: np.ndarray
    labels: np.ndarray
    metrics: dict[str, np.ndarray]


def write_results(
    folder: str,
    *,
    about: Mapping[str, Any],
    rankings: Mapping[str, Mapping[str, float]],
    extras: Mapping[str, float],
    notes: Sequence[str],
    per_query: Mapping[str, PerQuery],
    version: str,
) -> None:
    """Writes the files; `metrics.json` last, so that it stands only where the others are whole."""
    files.make_folder(os.path.join(folder, "per_query"))
    for name, found in per_query.items():
        with files.atomic_write(_path_of(folder, name), "w") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(["id", "label", *found.metrics])
            columns = [["" if np.isnan(v) else repr(v) for v in c.tolist()] for c in found.metrics.values()]
            lines.writerows(zip(found.ids, found.labels.tolist(), *columns))
    tree = {
        "schema": SCHEMA,
        "tfrank": version,
        "about": dict(about),
        "rankings": {name: dict(row) for name, row in rankings.items()},
        "extras": dict(extras),
        "notes": list(notes),
    }
    files.write_json(os.path.join(folder, "metrics.json"), tree)


def load_metrics(folder: str) -> dict[str, Any]:
    """What `metrics.json` of a folder says.

    Raises:
        InputError: there is none, or it is damaged or of another schema.
    """
    path = os.path.join(folder, "metrics.json")
    try:
        with open(path) as file:
            tree = dict(json.load(file))
        if tree["schema"] != SCHEMA or not all(isinstance(tree[key], dict) for key in ("about", "rankings")):
            raise ValueError(f"schema {tree['schema']!r}")
    except FileNotFoundError:
        raise InputError(f"There is no evaluation in {folder} (no metrics.json).") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not what an evaluation writes ({error!r}). Evaluate again.") from None
    return tree


def load_per_query(folder: str, ranking: str) -> PerQuery:
    """What `per_query/<ranking>.csv` of a folder says; InputError where it is missing or damaged."""
    path = _path_of(folder, ranking)
    try:
        with open(path, newline="") as file:
            head, *lines = csv.reader(file)
        ids, labels, *columns = zip(*lines, strict=True) if lines else [()] * len(head)
        values = [np.array([float(v) if v else np.nan for v in column]) for column in columns]
        return PerQuery(np.array(ids), np.array(labels, np.int64), dict(zip(head[2:], values, strict=True)))
    except FileNotFoundError:
        raise InputError(f"There is no {path}: that evaluation has no ranking {ranking!r}.") from None
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{path} is damaged ({error}). Evaluate again.") from None


def common_queries(one: PerQuery, other: PerQuery) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the queries that both have, by their ids, in the order of the first.

    >>> nothing = np.zeros(2, int), {}
    >>> common_queries(PerQuery(np.array(["a", "b"]), *nothing), PerQuery(np.array(["b", "c"]), *nothing))
    (array([1]), array([0]))
    """
    _, rows, places = np.intersect1d(one.ids, other.ids, assume_unique=True, return_indices=True)
    order = np.argsort(rows)
    return rows[order], places[order]


def _path_of(folder, ranking):
    return os.path.join(folder, "per_query", f"{ranking}.csv")
