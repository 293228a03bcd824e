"""A head that is computed, not trained: it divides features by how far they spread within classes."""

import keras
import numpy as np
from keras import layers, ops

from tfrank.common import checks

# Share of the mean in each variance: the best on birds, objects, cars and groceries lies at 0.4 to 0.7.
SHRINKAGE = 0.6
# Of a head that is computed from a teacher's embeddings: the penalty in mean variances of a feature.
TAUGHT_STRENGTH = 1.0
# Keeps the gradient of the root finite at 0.
_EPSILON = 1e-6
# Rows whose variance within classes is at most this share of their square do not differ there.
_ROUNDING = 1e-12


@keras.saving.register_keras_serializable("tfrank")
class Rooted(layers.Layer):
    """Replaces features by the signed root of their share of the row's sum; the result has unit norm.

        r_i = sign(x_i) sqrt(|x_i| / sum_j |x_j|)

    Cosines of r are those of the Hellinger kernel (Arandjelovic and Zisserman, CVPR 2012, "Three things
    everyone should know to improve object retrieval"): a few large features no longer decide alone.
    """

    def call(self, inputs):
        sizes = ops.abs(inputs) + _EPSILON
        return ops.sign(inputs) * ops.sqrt(sizes / ops.sum(sizes, axis=-1, keepdims=True))


def rooted(features: np.ndarray) -> np.ndarray:
    """Returns what `Rooted` computes, of `[rows, features]`, in float64.

    >>> rooted(np.array([[9.0, -16.0, 0.0]])).round(3).tolist()
    [[0.6, -0.8, 0.0]]
    """
    sizes = np.abs(np.asarray(features, np.float64)) + _EPSILON
    return np.sign(features) * np.sqrt(sizes / sizes.sum(axis=1, keepdims=True))


def fitted_whitening(
    rows: np.ndarray, labels: np.ndarray, *, dim: int, shrinkage: float = SHRINKAGE
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kernel `[features, dim]` and the bias `[dim]` that whiten rows within classes.

        S = mean over rows of (x - mean of its class)(x - mean of its class)^T
        e = (x - m) W,    W = ((1 - a) S + a tr(S) / features I)^(-1/2) V

    where m is the mean of the rows, a the shrinkage, and V holds the directions in which the whitened rows
    spread most, so that fewer dimensions are a prefix of more. It is linear discriminant analysis, of all
    dimensions. W is scaled to a largest singular value of 1.

    Where nothing differs within classes, as of one row each, the shrinkage is 1: there is no telling which
    directions differ more.

    Args:
        rows: `[rows, features]`.
        labels: `[rows]` integers.
        dim: number of dimensions, at most that of the features.
        shrinkage: 0 for S as it is, up to 1, which only centres and turns the rows. Above 0 where S may be
            singular, as of fewer rows than features.

    >>> rows = np.array([[0, 0], [4, 0], [0, 1], [4, 1.0]])
    >>> kernel, bias = fitted_whitening(rows, np.array([0, 0, 1, 1]), dim=1, shrinkage=0.01)
    >>> np.abs(rows @ kernel + bias).round(2).tolist()  # what differs within classes counts for nothing
    [[0.5], [0.5], [0.5], [0.5]]
    """
    checks.number("shrinkage", shrinkage, at_least=0, at_most=1)
    x = np.asarray(rows, np.float64)
    center, (count, features) = x.mean(axis=0), x.shape
    if few := count < features:
        # Outside of what they span, rows do not differ.
        basis = np.linalg.qr(x.T, mode="complete")[0]
        x = x @ basis[:, :count]
    mean, squares = x.mean(axis=0), x.T @ x
    classes, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros([len(classes), x.shape[1]])
    np.add.at(sums, members, x)
    # Without a copy of the rows: the spread is the sum of squares less that of the means.
    within = (squares - (sums.T / counts) @ sums) / len(x)
    spread = squares / len(x) - np.outer(mean, mean)
    if np.trace(within) <= _ROUNDING * np.trace(squares) / len(x):
        within, shrinkage = np.eye(len(within)), 1.0
    variances, directions = np.linalg.eigh(within)
    variances = np.maximum(variances, 0)
    least = shrinkage * variances.sum() / features
    whitening = directions / np.sqrt((1 - shrinkage) * variances + least)
    kernel = whitening @ np.linalg.eigh(whitening.T @ spread @ whitening)[1][:, ::-1]
    if few:
        kernel = np.hstack([basis[:, :count] @ kernel, basis[:, count:] / np.sqrt(least)])
    kernel = kernel[:, :dim]
    kernel /= np.sqrt(np.linalg.eigvalsh(kernel.T @ kernel)[-1])
    return kernel.astype(np.float32), (-center @ kernel).astype(np.float32)


def fitted_to(
    rows: np.ndarray, targets: np.ndarray, *, strength: float, centred: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kernel `[features, dim]` and the bias `[dim]` that map rows to targets (ridge regression).

        W = argmin |(X - m) W - (Y - o)|^2 / rows + strength v |W|^2,    e = (x - m) W + o

    where m and o are the mean row and target, and v is the mean variance of a feature.

    Args:
        rows: `[rows, features]`.
        targets: `[rows, dim]`, those of the rows in the same order.
        strength: above 0.
        centred: whether the map has a bias; without one, m and o are 0.

    >>> rows = np.array([[0.0], [2.0], [4.0]])
    >>> kernel, bias = fitted_to(rows, 3 * rows + 1, strength=1e-9)
    >>> kernel.round(3).tolist(), bias.round(3).tolist()
    ([[3.0]], [1.0])
    """
    checks.number("strength", strength, above=0)
    x, y = np.asarray(rows, np.float64), np.asarray(targets, np.float64)
    penalty = strength * len(x) * x.var(axis=0).mean() + _EPSILON
    mean, offset = (part.mean(axis=0) if centred else np.zeros(part.shape[1]) for part in (x, y))
    x, y = x - mean, y - offset
    if len(x) < x.shape[1]:
        kernel = x.T @ np.linalg.solve(x @ x.T + penalty * np.eye(len(x)), y)
    else:
        kernel = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)
    return kernel.astype(np.float32), (offset - mean @ kernel).astype(np.float32)
