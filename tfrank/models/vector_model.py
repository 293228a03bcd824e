"""The model of vectors that another model has computed: a linear head, or an MLP before it."""

from collections.abc import Sequence

import keras

from tfrank.common import checks
from tfrank.models.embedding import COMPUTED_HEADS, HEADS, head_layer
from tfrank.models.normalization import UnitNorm

# The backbone of a config whose model takes vectors: there is none.
VECTORS = "vectors"


def vector_model(
    *, input_dim: int, hidden: Sequence[int] = (), head: str = "pca", embedding_dim: int
) -> keras.Model:
    """A model from `[batch, input_dim]` vectors of any norm to `[batch, embedding_dim]` float32.

        features = v / |v| + MLP(v / |v|),    embedding = W^T features

    The last layer of the MLP starts at zero, so that the features start as the vectors themselves.

    Args:
        input_dim: dimensions of the vectors.
        hidden: units of the hidden layers of the MLP, each with ReLU; () leaves the MLP out.
        head: one of `embedding.HEADS`, see `embedding.embedding_model`.
        embedding_dim: dimensions of the embedding; with head "none" it is `input_dim` instead, and with head
            "pca" or "whitened" at most that.

    >>> vector_model(input_dim=384, embedding_dim=128).count_params()
    49152
    """
    checks.one_of("head", head, HEADS)
    vectors = keras.Input(
        [checks.integer("input_dim", input_dim, at_least=1)], dtype="float32", name="vectors"
    )
    features = x = UnitNorm(dtype="float32", name="unit_vectors")(vectors)
    for number, units in enumerate(hidden, start=1):
        checks.integer("hidden", units, at_least=1)
        x = keras.layers.Dense(units, activation="relu", name=f"hidden_{number}")(x)
    if hidden:
        change = keras.layers.Dense(input_dim, kernel_initializer="zeros", name="change")(x)
        features = keras.layers.Add(dtype="float32", name="features")([features, change])
    if head in COMPUTED_HEADS:
        embedding_dim = min(embedding_dim, input_dim)
    return keras.Model(vectors, head_layer(features, head, embedding_dim), name="embedding_model")
