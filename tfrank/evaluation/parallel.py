"""Products of embeddings, and parallel computation on all cores."""

import collections
import contextlib
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import tensorflow as tf

# Threads beyond the number of cores: a product runs on all cores and leaves some idle when it ends.
MORE_THREADS = 2
# A gallery of up to this many bytes is copied to the device that multiplies it, beside its array or file.
HELD_BYTES = 2**31
# Rows of a larger gallery read at a time, a multiple of EVEN.
SLAB_ROWS = 2**16 // 48 * 48
# TensorFlow multiplies on processors in pieces of at most so many rows and columns, and rounds those of a
# smaller rest differently. So few queries are not padded: they would cost as much as these.
EVEN = 48

Task, Result = TypeVar("Task"), TypeVar("Result")


def similarities(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """`[queries, gallery]` read-only products of `[queries, dim]` and `[gallery, dim]` float32.

    Computed by TensorFlow, on the first GPU if there is one. From 48 queries on, both are padded, and on
    processors with AVX2 the product of two rows then has the same bits wherever they stand. That is measured,
    and promised by nobody, see `retrieval_ranks.similarity_blocks`.

    >>> similarities(np.eye(2, dtype=np.float32), np.ones([3, 2], np.float32)).shape
    (2, 3)
    """
    return _product(queries, tf.constant(even(gallery)))[:, : len(gallery)]


def even(rows: np.ndarray) -> np.ndarray:
    """The rows and as many zeros as make their number a multiple of 48.

    >>> even(np.ones([50, 2])).shape
    (96, 2)
    """
    missing = -len(rows) % EVEN
    return np.pad(rows, [[0, missing], [0, 0]]) if missing else rows


def _product(queries, gallery):
    padded = even(queries) if len(queries) >= EVEN else queries
    return np.asarray(tf.matmul(padded, gallery, transpose_b=True))[: len(queries)]


class Gallery:
    """Gallery rows to multiply with many blocks of queries, on the first GPU or else on all cores.

    Args:
        rows: `[gallery, dim]` float32, an array or a memory map, which may be larger than memory.

    Attributes:
        held: whether the rows are held on the device; otherwise each block of queries reads them again.
    """

    def __init__(self, rows: np.ndarray):
        self.held = rows.nbytes <= HELD_BYTES
        self._rows, self._number = tf.constant(even(rows)) if self.held else rows, len(rows)

    def __len__(self) -> int:
        return self._number

    def similarities(self, queries: np.ndarray) -> np.ndarray:
        """The products of `[queries, dim]` with the rows, see the function `similarities`."""
        if self.held:
            return _product(queries, self._rows)[:, : self._number]
        result = np.empty([len(queries), self._number], np.float32)
        for start in range(0, self._number, SLAB_ROWS):
            # The last slab starts earlier, so that all products have the same shape and rounding.
            start = max(0, min(start, self._number - SLAB_ROWS))
            columns = slice(start, start + SLAB_ROWS)
            result[:, columns] = similarities(queries, self._rows[columns])
        return result

    def largest(
        self, queries: np.ndarray, k: int, query: np.ndarray, own: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k largest similarities of each query and their rows, selected on the device.

        Args:
            queries: `[queries, dim]` float32.
            k: number of similarities, at most the number of rows.
            query: `[pairs]` the numbers of the queries that are gallery rows.
            own: `[pairs]` their gallery rows, whose similarity becomes -inf.

        Returns:
            `[queries, k]` float32 similarities, largest first, and `[queries, k]` int32 rows. Among equal
            similarities the lower row comes first.
        """
        block = tf.matmul(queries, self._rows, transpose_b=True)[:, : self._number]
        pairs = np.stack([query, own], axis=1).astype(np.int32)
        block = tf.tensor_scatter_nd_update(block, pairs, np.full(len(pairs), -np.inf, np.float32))
        similarity, rows = tf.math.top_k(block, k)
        return similarity.numpy(), rows.numpy()


def cores() -> int:
    """The number of processors of the machine."""
    return os.cpu_count() or 1


def count_physical_cores() -> None:
    """Lets joblib, by which scikit-learn counts cores, remember their number or that it cannot be had.

    At its first count it would print a traceback where that fails, as in containers without `lscpu`.
    """
    # Imported here because it takes a while to load.
    import joblib

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        joblib.cpu_count(only_physical_cores=True)


def in_parallel(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int | None = None
) -> Iterator[Result]:
    """Yields `function(task)` for each task, in order, computed by several threads.

    Meanwhile TF32 is off. Few results wait at a time. The error of a task is raised in place of its result.

    Args:
        function: the function to call.
        tasks: its arguments.
        workers: number of threads; None: a few more than there are cores.

    >>> list(in_parallel(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    workers = workers or cores() + MORE_THREADS
    waiting: collections.deque = collections.deque()
    with full_float32(), ThreadPoolExecutor(workers) as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(function, task))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _TensorFloat32:
    """TensorFlow's TF32 switch, global to the process: off while at least one caller needs it off."""

    def __init__(self):
        self._lock, self._asking, self._before = threading.Lock(), 0, False

    def off(self) -> None:
        """Switches TF32 off; each call needs a `restore`."""
        with self._lock:
            if not self._asking:
                self._before = tf.config.experimental.tensor_float_32_execution_enabled()
                tf.config.experimental.enable_tensor_float_32_execution(False)
            self._asking += 1

    def restore(self) -> None:
        """Ends one `off`; the last `restore` resets TF32 to its state before the first `off`."""
        with self._lock:
            self._asking -= 1
            if not self._asking:
                tf.config.experimental.enable_tensor_float_32_execution(self._before)


_TENSOR_FLOAT_32 = _TensorFloat32()


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Switches TF32 off for a block: on GPUs that have it, it could swap two neighbours of similar distance.

    Several threads may be inside at the same time: TF32 stays off until the last one leaves.
    """
    _TENSOR_FLOAT_32.off()
    try:
        yield
    finally:
        _TENSOR_FLOAT_32.restore()
