"""Maps from the embeddings of an old model to those of a new one, learnt on images that both have embedded.

With x the old and y the new embedding of an image, both of unit norm, the map is

    m(x) = normalize(W^T (x - mean) + offset + V^T relu(U^T (x - mean) + u))

The last part, an MLP, is left out by default. Mean and offset are the mean old and new embedding. W is

    argmin |(X - mean) W - (Y - offset)|^2 / n + strength v |W - T|^2

in closed form, where v is the mean variance of a dimension of X. The penalty pulls W towards T, which is 0
(ridge regression), or the best map s R that changes no angle, where R has orthonormal columns or rows
(Procrustes). The latter relaxes orthogonality, as Ricci et al. (NeurIPS 2025, arXiv 2509.16664) do by
gradient steps. An infinite strength gives T itself. The penalty is chosen on images that W was not computed
from.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from scipy import linalg

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.common.normalize import SMALLEST_NORM, l2_normalize
from tfrank.evaluation.array_checks import checked_embeddings, unit_rows
from tfrank.evaluation.postprocessing.whitening import Whitening

# Fewer images say nothing of a map.
FEWEST = 50
# The share of the images that penalties are chosen on: one in so many.
HELD_OUT = 5
# Of the MLP.
MOST_EPOCHS, BATCH, RATE = 30, 128, 3e-4
# Rows that are mapped at a time.
BLOCK_ROWS = 2**13


class Penalty(NamedTuple):
    """What a linear map is pulled towards, "zero" or "turn" (the best that changes no angle), and how far."""

    towards: str
    strength: float

    def __str__(self) -> str:
        return f"pulled towards {'0' if self.towards == 'zero' else 'a turn'}, strength {self.strength:g}"


PENALTIES = (
    *(Penalty("zero", strength) for strength in (0.1, 0.3, 1.0, 3.0, 10.0)),
    *(Penalty("turn", strength) for strength in (0.3, 3.0, np.inf)),
)


class EmbeddingMap(NamedTuple):
    """A map of embeddings, see the module. All arrays are float32.

    Attributes:
        mean: `[old]`.
        linear: `[old, new]`, W.
        offset: `[new]`.
        inner, bias: `[old, units]` and `[units]`, U and u; no units without an MLP.
        outer: `[units, new]`, V.
        models: `[2]` fingerprints of the old and the new model; "" if they are not known.
    """

    mean: np.ndarray
    linear: np.ndarray
    offset: np.ndarray
    inner: np.ndarray
    bias: np.ndarray
    outer: np.ndarray
    models: np.ndarray = np.array(["", ""])

    def __call__(self, embeddings: np.ndarray) -> np.ndarray:
        """Returns `[rows, new]` float32 of unit norm for old embeddings, `[rows, old]` floats of any norm.

        Raises:
            InputError: they have other dimensions.
        """
        rows = checked_embeddings("embeddings", embeddings, dim=len(self.mean))
        mapped = np.empty([len(rows), len(self.offset)], np.float32)
        for start in range(0, len(rows), BLOCK_ROWS):
            block = unit_rows(np.asarray(rows[start : start + BLOCK_ROWS]))[0] - self.mean
            change = np.maximum(block @ self.inner + self.bias, 0) @ self.outer
            mapped[start : start + BLOCK_ROWS] = l2_normalize(block @ self.linear + self.offset + change)
        return mapped


def identity_map(dim: int) -> EmbeddingMap:
    """Returns the map that changes nothing, between models of one space.

    >>> identity_map(2)(np.array([[3.0, 4.0]])).round(3).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    none = np.zeros([dim, 0], np.float32)
    zeros = np.zeros(dim, np.float32)
    return EmbeddingMap(zeros, np.eye(dim, dtype=np.float32), zeros, none, none[0], none.T)


def map_of_whitening(whitening: Whitening) -> EmbeddingMap:
    """Returns the map that whitens.

    >>> from tfrank.evaluation.postprocessing.whitening import Whitening
    >>> whitening = Whitening(np.float32([0.0, 0.8]), np.float32([[2.0, 0.0], [0.0, 1.0]]))
    >>> map_of_whitening(whitening)(np.array([[0.6, 0.8]])).round(3).tolist()
    [[1.0, 0.0]]
    """
    nothing = identity_map(whitening.projection.shape[1])
    no_units = np.zeros([len(whitening.mean), 0], np.float32)
    return nothing._replace(mean=whitening.mean, linear=whitening.projection, inner=no_units)


class Learnt(NamedTuple):
    """A map, and what it does to images that it was not learnt on.

    Attributes:
        map: the map, learnt on all images.
        penalty: the one whose map comes nearest to the new embeddings of the images held out.
        held_out: `[held]` which images these are, a fifth.
        mapped: `[held, new]` where a map places them that was learnt on the others.
    """

    map: EmbeddingMap
    penalty: Penalty
    held_out: np.ndarray
    mapped: np.ndarray


def learn_map(
    old: np.ndarray,
    new: np.ndarray,
    *,
    penalties: Sequence[Penalty] = PENALTIES,
    hidden: int = 0,
    seed: int = 0,
) -> Learnt:
    """Learns the map from old to new embeddings of the same images; no labels are needed.

    Memory and time are those of matrices `[old, old]` and `[old, new]`: 1,280 dimensions take some seconds.

    Args:
        old: `[images, old]` floats of any norm.
        new: `[images, new]`, of the same images in the same order.
        penalties: what is tried.
        hidden: units of the MLP; 0: none. Adam minimises 1 - cos(m(x), y), for as many of at most 30 epochs
            as serve the images held out best; that may be none.
        seed: draws the images that are held out, and the start and the batches of the MLP.

    Raises:
        InputError: there are fewer than 50 images, an embedding is not finite, or those of the old model are
            all equal.

    >>> draw = np.random.default_rng(0)
    >>> old, turn = draw.normal(size=(200, 8)), np.linalg.qr(draw.normal(size=(8, 8)))[0]
    >>> learnt = learn_map(old, old @ turn)
    >>> new = unit_rows(old @ turn)[0][learnt.held_out]
    >>> learnt.penalty.towards, bool(np.sum(learnt.mapped * new, axis=1).min() > 0.99)
    ('turn', True)
    """
    checks.integer("hidden", hidden, at_least=0)
    old, new = (unit_rows(checked_embeddings(name, rows))[0] for name, rows in (("old", old), ("new", new)))
    if len(old) != len(new):
        raise InputError(f"The old model embedded {len(old):,} images, and the new one {len(new):,}.")
    if len(old) < FEWEST:
        raise InputError(f"A map is learnt on at least {FEWEST} images. Received: {len(old)}")
    order = np.random.default_rng(seed).permutation(len(old))
    held_out, rest = np.sort(order[::HELD_OUT]), np.delete(order, np.s_[::HELD_OUT])
    tried = list(_linear_maps(old[rest], new[rest], penalties))
    best = _nearest(tried, old[held_out], new[held_out])
    (whole,) = _linear_maps(old, new, [penalties[best]])
    chosen = tried[best]
    if hidden:
        stages = [chosen, *_with_mlp(chosen, old[rest], new[rest], hidden, seed)]
        epochs = _nearest(stages, old[held_out], new[held_out])
        chosen = stages[epochs]
        *_, whole = whole, *itertools.islice(_with_mlp(whole, old, new, hidden, seed), epochs)
    return Learnt(whole, penalties[best], held_out, chosen(old[held_out]))


def _nearest(maps: Sequence[EmbeddingMap], old: np.ndarray, new: np.ndarray) -> int:
    """The number of the map whose mean cosine to the new embeddings is largest."""
    return int(np.argmax([np.einsum("nd,nd->", one(old), new) for one in maps]))


def _linear_maps(old: np.ndarray, new: np.ndarray, penalties: Sequence[Penalty]) -> Iterator[EmbeddingMap]:
    """Yields the linear map of each penalty, computed in float64.

    Raises:
        InputError: the old embeddings are equal.
    """
    mean, offset = (rows.mean(axis=0, dtype=np.float64) for rows in (old, new))
    centred = old - mean
    within = centred.T @ centred / len(old)
    across = centred.T @ (new - offset) / len(old)
    if np.trace(within) < SMALLEST_NORM**2:
        raise InputError(
            "The embeddings of the old model to learn a map from are equal: their variance is 0. Use other"
            " images, or check whether the model has collapsed."
        )
    variance = np.trace(within) / len(within)
    turn = _turn(within, across) if any(one.towards == "turn" for one in penalties) else 0 * across
    none = np.zeros([0], np.float32)
    for towards, strength in penalties:
        target = turn if towards == "turn" else 0 * across
        pull, linear = strength * variance, target
        if np.isfinite(strength):
            # Few images leave directions in which nothing varies.
            least = np.finfo(np.float32).eps * variance
            ridge = (pull + least) * np.eye(len(within))
            linear = linalg.solve(within + ridge, across + pull * target, assume_a="pos")
        arrays = (mean, linear, offset, none.reshape(len(mean), 0), none, none.reshape(0, len(offset)))
        yield EmbeddingMap(*(array.astype(np.float32) for array in arrays))


def _turn(within: np.ndarray, across: np.ndarray) -> np.ndarray:
    """The best map s R, R with orthonormal columns or rows (Schoenemann 1966; the scale is that of x R)."""
    left, values, right = np.linalg.svd(across.astype(np.float32), full_matrices=False)
    turn = np.float64(left @ right)
    return turn * values.sum() / np.sum(turn * (within @ turn))


def _with_mlp(
    start: EmbeddingMap, old: np.ndarray, new: np.ndarray, units: int, seed: int
) -> Iterator[EmbeddingMap]:
    """Yields a linear map with an MLP, which alone is trained and starts at 0, after each epoch."""
    draw, batches = np.random.default_rng(seed), -(-len(old) // BATCH)
    centred = old - start.mean
    spread = np.sqrt(2 / np.mean(np.sum(centred**2, axis=1)))
    first = (draw.normal(0, spread, [len(start.mean), units]), np.zeros(units))
    layers = [tf.Variable(one, dtype=tf.float32) for one in (*first, np.zeros([units, len(start.offset)]))]
    optimizer = keras.optimizers.Adam(RATE)
    optimizer.build(layers)

    @tf.function(autograph=False)
    def step(x, linear, y):
        with tf.GradientTape() as tape:
            inner, bias, outer = layers
            mapped = l2_normalize(linear + tf.nn.relu(x @ inner + bias) @ outer)
            loss = -tf.reduce_mean(tf.reduce_sum(mapped * y, axis=1))
        optimizer.apply_gradients(zip(tape.gradient(loss, layers), layers))

    linear = centred @ start.linear + start.offset
    for _ in range(MOST_EPOCHS):
        for rows in np.array_split(draw.permutation(len(old)), batches):
            step(*(tf.constant(part[rows]) for part in (centred, linear, new)))
        inner, bias, outer = (layer.numpy() for layer in layers)
        yield start._replace(inner=inner, bias=bias, outer=outer)


def save_map(path: str, learnt: EmbeddingMap) -> None:
    """Writes a map atomically as .npz under exactly this path."""
    with files.atomic_write(path) as file:
        np.savez(file, **learnt._asdict())


def load_map(path: str) -> EmbeddingMap:
    """Reads a map written by `save_map`; raises InputError if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = EmbeddingMap(**{name: arrays[name] for name in EmbeddingMap._fields})
            _check_arrays(found)
            return found
    except FileNotFoundError:
        raise InputError(f"There is no map {path}. Learn one with tfrank compat.") from None
    except files.NPZ_ERRORS as error:
        raise InputError(f"{path} is no map, or is damaged ({error}). Learn it with tfrank compat.") from None


def _check_arrays(found: EmbeddingMap) -> None:
    """Raises ValueError if the arrays of a map do not fit each other."""
    *arrays, models = found
    (old,), (new,), (units,) = found.mean.shape, found.offset.shape, found.bias.shape
    shapes = [(old,), (old, new), (new,), (old, units), (units,), (units, new)]
    if [one.shape for one in arrays] != shapes or not old or not new or models.shape != (2,):
        raise ValueError("its arrays do not fit each other")
    floats = all(one.dtype == np.float32 and np.isfinite(one).all() for one in arrays)
    if not floats or models.dtype.kind != "U":
        raise ValueError("its arrays are not finite float32")
