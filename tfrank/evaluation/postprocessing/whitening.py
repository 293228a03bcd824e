"""PCA whitening of embeddings: learnt on training images, applied to queries, gallery and exported models.

The square-rooted PCA of section 4.2 of the mAP_Q paper (arXiv 1906.07589):

    e' = normalize(diag(lambda^-p) V^T (e - mean))

with the eigenvalues lambda and eigenvectors V of the covariance. p = 1/2 is full whitening: all directions
then have variance 1. p = 1/4 is its square root. p = 0 only rotates.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.common.normalize import SMALLEST_NORM, l2_normalize
from tfrank.evaluation.array_checks import checked_embeddings

# Eigenvalues are raised to at least this share of the largest. At p = 1/2, no direction is then scaled more
# than a thousand times as much as the first, so float32 rounding, 6e-8, stays negligible.
SMALLEST_EIGENVALUE = 1e-6
# Rows converted to float64 at a time.
BLOCK_ROWS = 2**13


class Whitening(NamedTuple):
    """The transform that `whiten` applies to an embedding e: normalize((e - mean) projection).

    Attributes:
        mean: `[dim]` float32.
        projection: `[dim, out]` float32, directions of the largest variance first.
    """

    mean: np.ndarray
    projection: np.ndarray


def learn_whitening(embeddings: np.ndarray, *, power: float = 0.25, dims: int | None = None) -> Whitening:
    """Learns the whitening of a set of embeddings, in float64 and with memory for `[dim, dim]`.

    Learn it on training images only: a whitening learnt on test images makes their metrics optimistic.
    Eigenvalues below a millionth of the largest are raised to that, so directions in which the embeddings do
    not vary stay finite. The largest entry of each direction is made positive, so signs are reproducible.

    Args:
        embeddings: `[images, dim]` floats, unit norm; an array or a memory map, which is read in blocks.
        power: p, 0 to 0.5. 0.25: mAP_Q, section 4.2.
        dims: number of directions to keep, those of the largest variance. None: all.

    Raises:
        InputError: an argument is out of range, an embedding is not finite, or all embeddings are equal.

    >>> x = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> learn_whitening(x, power=0.5, dims=1).projection.round(3).tolist()  # Variances 2 and 1/2.
    [[0.7070000171661377], [0.0]]
    """
    embeddings = checked_embeddings("embeddings", embeddings)
    dim = embeddings.shape[1]
    power = checks.number("power", power, at_least=0, at_most=0.5)
    kept = dim if dims is None else checks.integer("dims", dims, at_least=1)
    if kept > dim:
        raise checks.invalid("dims", f"at most {dim}, the dim of the embeddings", dims)
    mean, covariance = mean_and_covariance(embeddings)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    # Sort by variance, largest first.
    eigenvalues, vectors = eigenvalues[::-1][:kept], vectors[:, ::-1][:, :kept]
    if eigenvalues[0] < SMALLEST_NORM**2:
        raise InputError(
            f"The {len(embeddings):,} embeddings to learn the whitening from are equal: their variance is 0."
            " Use more images, or check whether the model has collapsed."
        )
    largest = np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=0)[None], axis=0)
    scales = np.maximum(eigenvalues, SMALLEST_EIGENVALUE * eigenvalues[0]) ** -power
    projection = vectors * np.sign(largest) * scales
    return Whitening(mean.astype(np.float32), projection.astype(np.float32))


def whiten(embeddings: np.ndarray, whitening: Whitening) -> np.ndarray:
    """Whitens `[images, dim]` floats, in blocks; returns `[images, out]` float32 of unit norm.

    Raises:
        InputError: the whitening is for another number of dimensions.

    >>> x = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> whiten(np.array([[1.0, 0.5]]), learn_whitening(x, power=0.5)).round(3).tolist()
    [[0.7070000171661377, 0.7070000171661377]]
    """
    embeddings = checked_embeddings("embeddings", embeddings)
    _check_dim(embeddings.shape[1], whitening)
    whitened = np.empty([len(embeddings), whitening.projection.shape[1]], np.float32)
    for start in range(0, len(embeddings), BLOCK_ROWS):
        block = embeddings[start : start + BLOCK_ROWS].astype(np.float32)
        projected = (block - whitening.mean) @ whitening.projection
        whitened[start : start + BLOCK_ROWS] = l2_normalize(tf.constant(projected))
    return whitened


def inverse(whitening: Whitening) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function from what `whiten` returns, `[images, dim]`, back to the embeddings of unit norm.

    The projection has to be square and not singular, as that of `learn_neighbor_whitening`.

    >>> x = np.array([[0.6, 0.8], [0.8, 0.6], [1.0, 0.0]])
    >>> whitening = learn_whitening(x)
    >>> inverse(whitening)(whiten(x, whitening)).astype(float).round(3).tolist()
    [[0.6, 0.8], [0.8, 0.6], [1.0, 0.0]]
    """
    mean, back = whitening.mean.astype(np.float64), np.linalg.inv(whitening.projection.astype(np.float64))

    def unwhiten(rows):
        """Its length is the one at which mean and direction have unit norm together."""
        directions = rows @ back
        squares, along = np.sum(directions**2, axis=1), directions @ mean
        length = (np.sqrt(along**2 + squares * (1 - mean @ mean)) - along) / squares
        return (mean + length[:, None] * directions).astype(np.float32)

    return unwhiten


def whitening_layer(whitening: Whitening) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns `whiten` as a TensorFlow function, for graphs such as that of an exported model.

    It maps `[batch, dim]` to `[batch, out]` float32 tensors. The whitening is stored as constants.
    """

    def whiten_tensor(embeddings):
        _check_dim(embeddings.shape[1], whitening)
        return l2_normalize(tf.matmul(embeddings - whitening.mean, whitening.projection))

    return whiten_tensor


def save_whitening(path: str, whitening: Whitening) -> None:
    """Writes a whitening atomically as .npz under exactly this path."""
    with files.atomic_write(path) as file:
        np.savez(file, **whitening._asdict())


def load_whitening(path: str) -> Whitening:
    """Reads a whitening written by `save_whitening`; raises InputError if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            whitening = Whitening(arrays["mean"], arrays["projection"])
    except FileNotFoundError:
        raise InputError(f"There is no whitening {path}. Write it with `save_whitening`.") from None
    except files.NPZ_ERRORS as error:
        raise InputError(f"{path} is not a whitening, or is damaged ({error}). Learn it again.") from None
    if not _is_whole(whitening):
        raise InputError(f"{path} is not a whitening, or is damaged. Learn it again.")
    return whitening


def mean_and_covariance(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `[dim]` mean and `[dim, dim]` covariance, in two passes: one would lose digits."""
    mean = sum(block.sum(axis=0) for block in _blocks(embeddings)) / len(embeddings)
    if not np.isfinite(mean).all():
        raise InputError(
            "Embeddings to learn the whitening from are not finite. The model may have diverged."
        )
    centered = (block - mean for block in _blocks(embeddings))
    return mean, sum(block.T @ block for block in centered) / len(embeddings)


def _blocks(embeddings: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(embeddings), BLOCK_ROWS):
        yield embeddings[start : start + BLOCK_ROWS].astype(np.float64)


def _check_dim(dim: int, whitening: Whitening) -> None:
    if dim != len(whitening.mean):
        raise InputError(
            f"The whitening is for embeddings of {len(whitening.mean)} dimensions; these have {dim}."
            " Learn one from embeddings of this model."
        )


def _is_whole(whitening: Whitening) -> bool:
    mean, projection = whitening
    return (
        mean.dtype == projection.dtype == np.float32
        and mean.ndim == 1
        and projection.ndim == 2
        and 0 < projection.shape[1] <= len(projection) == len(mean)
        and bool(np.isfinite(mean).all() and np.isfinite(projection).all())
    )
