"""Products of embeddings, and pieces of a long computation on all cores."""

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import tensorflow as tf

# Threads above the number of cores: a product, which is shared by all cores, leaves some idle at its end.
MORE_THREADS = 2
# Bytes of a gallery up to which it is held where it is multiplied, beside the array or file that it is from.
HELD_BYTES = 2**31
# Rows of a larger gallery that are read at a time.
SLAB_ROWS = 2**16

Task, Result = TypeVar("Task"), TypeVar("Result")


def similarities(queries: np.ndarray, gallery: np.ndarray | tf.Tensor) -> np.ndarray:
    """`[queries, gallery]` products of `[queries, dim]` and `[gallery, dim]` float32, not to be written to.

    By TensorFlow, on the first GPU if there is one. In one product equal rows have bit-equal similarities
    wherever they stand; NumPy's BLAS rounds by position.

    >>> similarities(np.eye(2, dtype=np.float32), np.ones([3, 2], np.float32)).shape
    (2, 3)
    """
    return np.asarray(tf.matmul(queries, gallery, transpose_b=True))


class Gallery:
    """Rows that many blocks of queries are multiplied with: on the first GPU, or else on all cores.

    Args:
        rows: `[gallery, dim]` float32, an array or a memory map, which may be larger than memory.

    Attributes:
        held: whether the rows are held; else each block of queries reads them anew.
    """

    def __init__(self, rows: np.ndarray):
        self.held = rows.nbytes <= HELD_BYTES
        self._rows = tf.constant(rows) if self.held else rows

    def __len__(self) -> int:
        return len(self._rows)

    def similarities(self, queries: np.ndarray) -> np.ndarray:
        """As the function `similarities`, with these rows."""
        if self.held:
            return similarities(queries, self._rows)
        result = np.empty([len(queries), len(self._rows)], np.float32)
        for start in range(0, len(self._rows), SLAB_ROWS):
            # The last slab begins earlier, so that all products have one shape and round alike.
            start = max(0, min(start, len(self._rows) - SLAB_ROWS))
            columns = slice(start, start + SLAB_ROWS)
            result[:, columns] = similarities(queries, self._rows[columns])
        return result

    def largest(
        self, queries: np.ndarray, k: int, query: np.ndarray, own: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k largest similarities of each query and their rows, chosen where they are computed.

        Args:
            queries: `[queries, dim]` float32.
            k: how many, of at most the rows there are.
            query: `[pairs]` the numbers of queries that stand in the gallery.
            own: `[pairs]` the rows where they stand, whose similarity becomes -inf.

        Returns:
            `[queries, k]` float32 similarities, largest first, and `[queries, k]` int32 rows; of equals,
            the first row first.
        """
        block = tf.matmul(queries, self._rows, transpose_b=True)
        pairs = np.stack([query, own], axis=1).astype(np.int32)
        block = tf.tensor_scatter_nd_update(block, pairs, np.full(len(pairs), -np.inf, np.float32))
        similarity, rows = tf.math.top_k(block, k)
        return similarity.numpy(), rows.numpy()


def gpu() -> str | None:
    """The name of the first GPU; None where there is none."""
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if gpus else None


def cores() -> int:
    """How many processors the machine has."""
    return os.cpu_count() or 1


def in_parallel(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int | None = None
) -> Iterator[Result]:
    """`function(task)` of each task, in their order, computed by several threads.

    Products are of full float32 meanwhile. Few results wait at a time. An error of a task is raised where its
    result would come.

    Args:
        function: what to do.
        tasks: with what.
        workers: how many threads; None: some more than there are cores.

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
    """TensorFlow's switch, which is one for the whole process: off while anyone asks for that."""

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
        """The last one switches TF32 back to what it was before the first `off`."""
        with self._lock:
            self._asking -= 1
            if not self._asking:
                tf.config.experimental.enable_tensor_float_32_execution(self._before)


_TENSOR_FLOAT_32 = _TensorFloat32()


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """No TF32: on GPUs that have it, it would change which of two near neighbours is the nearer.

    Threads may be inside at the same time: TF32 is off until the last of them leaves.
    """
    _TENSOR_FLOAT_32.off()
    try:
        yield
    finally:
        _TENSOR_FLOAT_32.restore()
