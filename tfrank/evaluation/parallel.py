"""Products of embeddings, and pieces of a long computation on all cores."""

import collections
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import tensorflow as tf

# Threads above the number of cores: a product, which is shared by all cores, leaves some idle at its end.
MORE_THREADS = 2

Task, Result = TypeVar("Task"), TypeVar("Result")


def similarities(queries: np.ndarray, gallery: np.ndarray | tf.Tensor) -> np.ndarray:
    """`[queries, gallery]` products of `[queries, dim]` and `[gallery, dim]` float32, not to be written to.

    By TensorFlow, on the first GPU if there is one. In one product equal rows have bit-equal similarities
    wherever they stand; NumPy's BLAS rounds by position.

    >>> similarities(np.eye(2, dtype=np.float32), np.ones([3, 2], np.float32)).shape
    (2, 3)
    """
    return np.asarray(tf.matmul(queries, gallery, transpose_b=True))


def in_parallel(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """`function(task)` of each task, in their order, computed by some more threads than there are cores.

    Products are of full float32 meanwhile. Few results wait at a time. An error of a task is raised where its
    result would come.

    >>> list(in_parallel(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    workers = (os.cpu_count() or 1) + MORE_THREADS
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


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """No TF32: on GPUs that have it, it would change which of two near neighbours is the nearer."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
