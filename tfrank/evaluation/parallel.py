"""Pieces of a long computation on all cores, and products of embeddings."""

import collections
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import tensorflow as tf
from threadpoolctl import threadpool_limits

Task, Result = TypeVar("Task"), TypeVar("Result")


def in_parallel(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """`function(task)` of each task, in their order, computed by as many threads as there are cores.

    Matrix products inside them take one thread each. Few results wait at a time. An error of a task is
    raised where its result would come.

    >>> list(in_parallel(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    workers = os.cpu_count() or 1
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
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


class Gallery:
    """Rows that many blocks of queries are multiplied with: on the first GPU, or else by BLAS.

    Args:
        rows: `[gallery, dim]` float32, an array or a memory map.
    """

    def __init__(self, rows: np.ndarray):
        gpus = tf.config.list_logical_devices("GPU")
        self._device = gpus[0].name if gpus else None
        if self._device:
            with tf.device(self._device):
                rows = tf.constant(rows)
        self._rows = rows

    def similarities(self, queries: np.ndarray) -> np.ndarray:
        """`[queries, gallery]` products of `[queries, dim]` float32 with the rows, in full float32."""
        if not self._device:
            return queries @ self._rows.T
        with tf.device(self._device):
            return tf.matmul(queries, self._rows, transpose_b=True).numpy()
