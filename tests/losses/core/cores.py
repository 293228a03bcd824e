"""Queries and galleries of every kind, the values and gradients of a loss on them, and what to compare."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.losses import (
    LABELS,
    embeddings,
)
from tfrank.losses.core import rows

ALL = np.arange(len(LABELS), dtype=np.int32)


@contextlib.contextmanager
def fresh_functions():
    """Traces the functions of losses anew inside, so that what is patched is seen, and again afterwards."""
    for cache in (rows._scoring, rows._compiled):
        cache.cache_clear()
    yield
    for cache in (rows._scoring, rows._compiled):
        cache.cache_clear()


@contextlib.contextmanager
def eagerly():
    """Runs functions of TensorFlow as Python inside, so that what is patched and recorded is called."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def cores():
    """By name: query labels, queries, gallery labels, gallery, self_index; float64 rows of any norm."""
    batch, more = embeddings(), embeddings(seed=1)
    return {
        "one batch": (LABELS, batch, LABELS, batch, ALL),
        "part of the batch against the batch": (LABELS[4:9], batch[4:9], LABELS, batch, ALL[4:9]),
        "gallery holds the batch and more": (
            LABELS,
            batch,
            np.concatenate([LABELS[:5], LABELS]),
            np.concatenate([more[:5], batch]),
            ALL + 5,
        ),
        "no query in the gallery": (LABELS, batch, LABELS[::-1], more, np.full_like(ALL, -1)),
        "some queries in the gallery": (LABELS, batch, LABELS[:6], batch[:6], np.where(ALL < 6, ALL, -1)),
        "labels the gallery lacks": (LABELS * 2 - 3, batch, LABELS, more, np.full_like(ALL, -1)),
        "one row in the gallery": (LABELS, batch, LABELS[:1], more[:1], np.full_like(ALL, -1)),
        "a gallery of one class": (LABELS, batch, np.full(4, 3), more[:4], np.full_like(ALL, -1)),
    }


CORES = cores()
every_core = pytest.mark.parametrize("case", CORES)


def tensors(core):
    """As tensors; embeddings that are the gallery's are the very same tensor, as in the losses."""
    query_labels, queries, gallery_labels, gallery, self_index = core
    queries_tensor = tf.constant(queries)
    gallery_tensor = queries_tensor if gallery is queries else tf.constant(gallery)
    return (
        *(tf.constant(query_labels), queries_tensor),
        *(tf.constant(gallery_labels), gallery_tensor, tf.constant(self_index)),
    )


def rows_for(recipe, queries, gallery):
    """The rows that the core of a loss sees, the very same tensor where queries are the gallery."""
    if recipe is not None and not recipe.normalizes:
        return queries, gallery
    unit = tf.math.l2_normalize(queries, axis=1)
    return unit, unit if gallery is queries else tf.math.l2_normalize(gallery, axis=1)


def values_of(function, core, recipe):
    """Losses and valid queries of a core of tensors."""
    query_labels, queries, gallery_labels, gallery, self_index = core
    queries, gallery = rows_for(recipe, queries, gallery)
    return function(query_labels, queries, gallery_labels, gallery, self_index)


def values_and_gradients(function, core, recipe=None):
    """Losses, valid queries, and the gradients of a sum of the losses with unequal weights.

    The function sees rows divided by their norms, unless it is of a loss that takes them as they are.
    """
    core = tensors(core)
    _, queries, _, gallery, _ = core
    with tf.GradientTape() as tape:
        tape.watch([queries, gallery])
        values, valid = values_of(function, core, recipe)
    weights = tf.linspace(tf.constant(1.0, tf.float64), 2, values.shape[0])
    gradients = tape.gradient(values, [queries, gallery], weights, unconnected_gradients="zero")
    return values, valid, *gradients


def assert_same(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def assert_gradients_are_slopes(function, core, recipe=None):
    """Along random directions of all queries and gallery rows, by central differences."""
    query_labels, queries, gallery_labels, gallery, self_index = core
    _, _, of_queries, of_gallery = values_and_gradients(function, core, recipe)
    weights = np.linspace(1, 2, len(queries))
    for seed in range(3):
        random = np.random.default_rng(seed)
        move, gallery_move = random.normal(size=queries.shape), random.normal(size=gallery.shape)
        sums = []
        for step in (1e-6, -1e-6):
            moved = queries + step * move
            moved_gallery = moved if gallery is queries else gallery + step * gallery_move
            pairs = tensors((query_labels, moved, gallery_labels, moved_gallery, self_index))
            sums.append(np.sum(weights * values_of(function, pairs, recipe)[0]))
        along = np.sum(of_queries * move) + (gallery is not queries) * np.sum(of_gallery * gallery_move)
        np.testing.assert_allclose(along, (sums[0] - sums[1]) / 2e-6, rtol=1e-5, atol=1e-6)
