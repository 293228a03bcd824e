"""Pieces of a long computation on all cores, and products of embeddings."""

import collections
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import tensorflow as tf
from threadpoolctl import threadpool_limits

Task, Result = TypeVar("Task"), TypeVar("Result")


def cores() -> int:
    """How many processors the machine has."""
    return os.cpu_count() or 1


def in_parallel(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int | None = None
) -> Iterator[Result]:
    """`function(task)` of each task, in their order, computed by as many threads as there are cores.

    Matrix products inside them take one thread each, and are in full float32 on a GPU. Few results wait at
    a time. An error of a task is raised where its result would come.

    Args:
        function: what to do.
        tasks: with what.
        workers: how many threads; None: as many as there are cores.

    >>> list(in_parallel(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    workers = workers or cores()
    with _full_float32(), threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        waiting: collections.deque = collections.deque()
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


def gpu() -> str | None:
    """The name of the first GPU; None where there is none."""
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if gpus else None


class Gallery:
    """Rows that many blocks of queries are multiplied with: on the first GPU, or else by BLAS.

    Args:
        rows: `[gallery, dim]` float32, an array or a memory map.

    Attributes:
        device: the GPU, or None.
    """

    def __init__(self, rows: np.ndarray):
        self.device = gpu()
        if self.device:
            with tf.device(self.device):
                rows = tf.constant(rows)
        self._rows = rows

    def similarities(self, queries: np.ndarray) -> np.ndarray:
        """`[queries, gallery]` products of `[queries, dim]` float32 with the rows, in full float32."""
        if not self.device:
            return queries @ self._rows.T
        with tf.device(self.device):
            return tf.matmul(queries, self._rows, transpose_b=True).numpy()

    def largest(
        self, queries: np.ndarray, k: int, query: np.ndarray, own: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k largest similarities of each query and their rows, chosen on the GPU; only they come back.

        Args:
            queries: `[queries, dim]` float32.
            k: how many, of at most the rows there are.
            query: `[pairs]` the numbers of queries that stand in the gallery.
            own: `[pairs]` the rows where they stand, whose similarity becomes -inf.

        Returns:
            `[queries, k]` float32 similarities, largest first, and `[queries, k]` int32 rows; of equals,
            the first row first.
        """
        with tf.device(self.device):
            block = tf.matmul(queries, self._rows, transpose_b=True)
            pairs = np.stack([query, own], axis=1).astype(np.int32)
            block = tf.tensor_scatter_nd_update(block, pairs, np.full(len(pairs), -np.inf, np.float32))
            similarity, rows = tf.math.top_k(block, k)
        return similarity.numpy(), rows.numpy()


@contextlib.contextmanager
def _full_float32() -> Iterator[None]:
    """No TF32: on GPUs that have it, it would change which of two near neighbours is the nearer."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
