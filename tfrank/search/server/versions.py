"""The version of an index that is served, and its successor when that appears."""

import base64
import datetime
import functools
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from tfrank.common.checks import InputError, did_you_mean
from tfrank.search import labels
from tfrank.search.index import SearchIndex
from tfrank.search.index_folder import IndexFolder
from tfrank.search.label_review import compressed
from tfrank.search.server.errors import shortened

# Text columns with at most so many values are listed with them.
FEW_VALUES = 100
# Clients are not told where the images lie.
PRIVATE = ("path", "file_sha256")
# A PNG of one grey pixel.
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
_LOG = logging.getLogger("tfrank.search.server")


class Opened:
    """A version of an index with its model, and what is computed from it once.

    Args:
        folder: the index folder.
        trusted: whether the model may run any operation.
        before: the version that was served before. What both have in common is not read again.
    """

    def __init__(self, folder: str, *, trusted: bool, before: "Opened | None" = None):
        self.index = SearchIndex(folder, trusted=trusted, before=before and before.index)
        self.number, self.model = self.index.version.number, self.index.version.model
        self.names = [name for name in self.index.table.column_names if name not in PRIVATE]
        self._lock = threading.Lock()
        same = before if before is not None and before.index.version == self.index.version else None
        self._duplicates: dict[float, list[list[str]]] = same._duplicates if same else {}
        self._computed: dict[str, Any] = same._computed if same else {}
        if before is None or before.model != self.model:
            # The first call of a model takes longest.
            self.index.embedder.embed([_PIXEL])
        if same is None:
            self.index.matches  # noqa: B018  After new labels it is computed by the next search.

    def metadata(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns the columns of an image as JSON has them, without those that are private."""
        return {name: plain(value) for name, value in row.items() if name not in PRIVATE}

    def check_columns(self, where: dict[str, Any]) -> None:
        """Raises InputError if a condition names a column that there is not."""
        for name in where:
            if name not in self.names:
                hint = did_you_mean(name, self.names)
                raise InputError(
                    f"There is no column {shortened(name)!r}.{hint} Columns are: {', '.join(self.names)}."
                )

    @functools.cached_property
    def columns(self) -> list[dict[str, Any]]:
        """Names and types of the columns; of text with few values the values, of numbers the range."""
        return [_described(name, self.index.table.column(name)) for name in self.names]

    def duplicates(self, min_similarity: float, check: Callable[[], None]) -> list[list[str]]:
        """Returns groups of images that are nearly the same, the largest first. `check` may end the work."""
        with self._lock:
            if min_similarity not in self._duplicates:
                if len(self._duplicates) >= 4:
                    self._duplicates.clear()
                self._duplicates[min_similarity] = self.index.duplicates(min_similarity, check)
            return self._duplicates[min_similarity]

    def nearest(self, check: Callable[[], None]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the nearest rows of each row, and their cosines. `check` may end the work."""
        return self._once("nearest", lambda: self.index.nearest(check))

    def compressed(self) -> np.ndarray:
        """Returns the embeddings in fewer dimensions, by which labels are judged quicker."""
        return self._once("compressed", lambda: compressed(self.index.embeddings))

    def _once(self, name, compute):
        """Returns what is computed once for all that have this version of the index."""
        with self._lock:
            if name not in self._computed:
                self._computed[name] = compute()
            return self._computed[name]

    @functools.cached_property
    def labelled(self) -> dict[str, list[str]]:
        """The ids of the photos of each label, by the alphabet; of "" those without one."""
        found: dict[str, list[str]] = {}
        for key, label in zip(self.index.ids.tolist(), self.index.labels):
            found.setdefault(label, []).append(key)
        return dict(sorted(found.items()))

    def kept(self, label: str) -> str:
        """Returns a label as the index keeps it. One of an older tfrank may have some that end in a blank."""
        return label if label in self.labelled else labels.normalized(label)

    def conditions(self, where: dict[str, Any]) -> dict[str, Any]:
        """Returns conditions on columns, with labels as the index keeps them."""

        def kept(value: Any) -> Any:
            if isinstance(value, list):
                return [kept(one) for one in value]
            if isinstance(value, dict):
                return {comparison: kept(one) for comparison, one in value.items()}
            return self.kept(value) if isinstance(value, str) else value

        return {name: kept(value) if name == "label" else value for name, value in where.items()}

    def spread(self, k: int) -> list[str]:
        """Returns the ids of k images, evenly spread over the index."""
        images = len(self.index)
        k = min(k, images)
        rows = (2 * np.arange(k) + 1) * images // (2 * k)
        return self.index.ids[rows].tolist()


class Versions:
    """Holds the current version of an index. Requests keep the one they began with.

    Args:
        folder: the index folder.
        trusted: whether its models may run any operation.

    Attributes:
        current: the version that is served.
        problem: why the last look failed; "" if it did not.

    Raises:
        InputError: the folder is no index, or its model is refused.
    """

    def __init__(self, folder: str, *, trusted: bool = False):
        self.folder, self._trusted, self._lock = folder, trusted, threading.Lock()
        self.problem = ""
        self._stamp = labels.stamp(folder)
        self.current = Opened(folder, trusted=trusted)
        self._looked = time.monotonic()

    def refresh(self) -> None:
        """Opens the current version if it, or what was said of its labels, is not what is served.

        If that fails, whatever the reason, the version before stays, and the reason is logged once.
        """
        with self._lock:
            try:
                # Taken before it is read, so that no change is overlooked.
                stamp = labels.stamp(self.folder)
                # Not by the number, which a folder that was made anew has again.
                new = IndexFolder(self.folder).current() != self.current.index.version
                if new or stamp != self._stamp:
                    self.current = Opened(self.folder, trusted=self._trusted, before=self.current)
                    self._stamp = stamp
                    if new:
                        _LOG.info("version %d: %d images", self.current.number, len(self.current.index))
                self._looked, problem = time.monotonic(), ""
            except InputError as error:
                problem = str(error)
            # Whatever it is, the next look may find it mended.
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem and problem != self.problem:
                _LOG.error("The index is not looked at, version %d stays: %s", self.current.number, problem)
            self.problem = problem

    def age(self) -> float:
        """Returns the seconds since the last look that found the current version served."""
        return time.monotonic() - self._looked


def plain(value: Any) -> Any:
    """Returns a value of a column as JSON has it: no NaN, dates as text.

    >>> plain(float("nan")), plain(datetime.date(2026, 2, 1)), plain([1, "a"])
    (None, '2026-02-01', [1, 'a'])
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)


def _described(name: str, column: pa.ChunkedArray) -> dict[str, Any]:
    described = {"name": name, "type": _kind(column.type)}
    if described["type"] == "text":
        values = sorted(value for value in pc.unique(column).to_pylist() if value is not None)
        if len(values) <= FEW_VALUES:
            described["values"] = values
    if described["type"] == "number" and len(column) > column.null_count:
        ends = pc.min_max(column).as_py()
        described |= {end: plain(ends[end]) for end in ("min", "max")}
    return described


def _kind(of: pa.DataType) -> str:
    if types.is_string(of) or types.is_large_string(of):
        return "text"
    if types.is_integer(of) or types.is_floating(of):
        return "number"
    return "truth" if types.is_boolean(of) else str(of)
