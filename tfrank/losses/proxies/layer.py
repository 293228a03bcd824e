"""The proxies of classes: a layer that follows the embedding model in training and returns embeddings."""

from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, loss_layers
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.dense_gather import gather


@keras.saving.register_keras_serializable("tfrank")
class Proxies(keras.layers.Layer):
    """Holds learned vectors, the proxies, that a loss compares embeddings with; returns its input as it is.

        c_j = x . p_j / (|x| |p_j|)

    A proxy represents a class of training images. It is initialised as a random unit vector; only its
    direction matters. The path of the variable ends in "proxies/proxies". Therefore
    `multipliers={"proxies": 100}` of `tfrank.training.optimizers.build_optimizer` gives proxies their own
    learning rate, and `no_decay=["proxies"]` exempts them from weight decay.

    `ProxyLoss.proxies` creates the layer with the right number of proxies. The output of a model that ends
    in this layer is the embedding, in training too: metrics, callbacks and `predict` see no cosines. The loss
    finds the layer by the output.

    Args:
        num_proxies: number of proxies, at least 1.
        regularizer: a Keras regulariser of the `[num_proxies, dim]` proxies, or None.
        seed: seed of the initial proxies, at least 0.
        loss: name of the loss that the proxies are for. It tells apart layers that follow each other, as
            for a `WeightedSum` of two losses with proxies.
        options: options of a Keras layer, such as its name.

    Called on embeddings, `[batch, dim]` of any float dtype and norm, it returns them. `cosines` returns their
    cosines with the proxies, `[batch, num_proxies]` float32 (float64 for float64 embeddings), whatever the
    dtype policy; proxies are float32. An embedding or a proxy of norm below 1e-6 has cosine 0 with everything
    and no gradient.

    >>> layer, embeddings = Proxies(3), tf.ones([2, 8])
    >>> layer(embeddings).shape.as_list(), layer.cosines(embeddings).shape.as_list()
    ([2, 8], [2, 3])
    """

    def __init__(
        self,
        num_proxies: int,
        *,
        regularizer: keras.regularizers.Regularizer | None = None,
        seed: int = 0,
        loss: str | None = None,
        **options: Any,
    ):
        super().__init__(autocast=False, **options)
        self.num_proxies = checks.integer("num_proxies", num_proxies, at_least=1)
        self.regularizer = keras.regularizers.get(regularizer)
        self.seed = checks.integer("seed", seed, at_least=0)
        self.loss = loss

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the proxies, with the dimension of the embeddings."""
        if len(input_shape) != 2 or input_shape[1] is None:
            raise checks.invalid("embeddings", "shape [batch, dim], dim known", tuple(input_shape))
        self.proxies = self.add_weight(
            name="proxies",
            shape=(self.num_proxies, input_shape[1]),
            initializer=self._unit_rows,
            dtype="float32",
            autocast=False,
            regularizer=self.regularizer,
        )

    def call(self, embeddings: tf.Tensor) -> tf.Tensor:
        """Returns the embeddings, marked so that the loss finds this layer."""
        return loss_layers.through(self, embeddings)

    def cosines(self, embeddings: tf.Tensor, columns: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the cosines of `[batch, dim]` embeddings with the proxies, `[batch, num_proxies]`.

        Args:
            embeddings: `[batch, dim]` floats. Those of fewer dimensions, as in a `MatryoshkaLoss`, are
                compared with as many of the proxies'.
            columns: `[columns]` integers, the numbers of some proxies, for `[batch, columns]`; None: all.
        """
        dtype = tf.float64 if embeddings.dtype == tf.float64 else tf.float32
        proxies = tf.convert_to_tensor(self.proxies)
        some = proxies if columns is None else gather(proxies, columns)
        some = some[:, : embeddings.shape[1]]
        rows, proxies = (l2_normalize(tf.cast(x, dtype)) for x in (embeddings, some))
        return tf.matmul(rows, proxies, transpose_b=True)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            **super().get_config(),
            "num_proxies": self.num_proxies,
            "regularizer": keras.regularizers.serialize(self.regularizer),
            "seed": self.seed,
            "loss": self.loss,
        }

    def _unit_rows(self, shape, dtype):
        return l2_normalize(keras.random.normal(shape, dtype=dtype, seed=self.seed))
