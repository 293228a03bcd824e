"""Pooling: from a feature map to one vector per image."""

import keras
from keras import layers, ops

from tfrank.common import checks
from tfrank.common.normalize import l2_normalize

MODES = ("flatten", "average", "max", "gem", "rmac")
# Of a network with a class token: that token, or it beside the average of the patches.
TOKEN_MODES = ("class_token", "class_token_average")


def pool(features, mode: str, class_token=None):
    """Pools `[batch, height, width, channels]` to `[batch, channels]`; "flatten" keeps all values.

    Args:
        features: a symbolic Keras tensor; "flatten" and "rmac" need known height and width.
        mode: "flatten", "average", "max", "gem" (`GeM`) or "rmac" (`RMAC`). The last two compute in float32
            under mixed precision too. With a class token also "class_token", or "class_token_average", which
            puts the average behind it, `[batch, 2 channels]`.
        class_token: `[batch, channels]`; None if the network has none.
    """
    checks.one_of("pooling", mode, MODES if class_token is None else (*MODES, *TOKEN_MODES))
    if mode == "class_token":
        return class_token
    if mode == "class_token_average":
        return layers.Concatenate()([class_token, layers.GlobalAveragePooling2D()(features)])
    if mode == "flatten":
        return layers.Flatten()(features)
    if mode == "average":
        return layers.GlobalAveragePooling2D()(features)
    if mode == "max":
        return layers.GlobalMaxPooling2D()(features)
    # Powers and norms need more precision than bfloat16 has; float64 is kept.
    dtype = "float64" if features.dtype == "float64" else "float32"
    return {"gem": GeM, "rmac": RMAC}[mode](name=mode, dtype=dtype)(features)


@keras.saving.register_keras_serializable("tfrank")
class GeM(layers.Layer):
    """Generalized mean over the positions, per channel: mean(x^p)^(1/p), with x at least `smallest`.

    p = 1 is the average, p -> infinity the maximum. All channels share one trained variable `p`, initially 3.

    Radenovic, Tolias and Chum, "Fine-tuning CNN image retrieval with no human annotation" (GeM),
    arXiv:1711.02512; the pooling of Revaud et al., arXiv:1906.07589.

    Args:
        initial_p: initial value of p, positive float.
        smallest: positive float; activations below it are raised to it, and have no gradient.

    >>> import numpy as np
    >>> float(GeM(initial_p=2.0)(np.array([1.0, 7.0], "float32").reshape([1, 2, 1, 1]))[0, 0])
    5.0
    """

    def __init__(self, initial_p: float = 3.0, smallest: float = 1e-6, **kwargs):
        super().__init__(**kwargs)
        self.initial_p = checks.number("initial_p", initial_p, above=0)
        self.smallest = checks.number("smallest", smallest, above=0)

    def build(self, input_shape):
        start = keras.initializers.Constant(self.initial_p)
        self.p = self.add_weight(shape=(), initializer=start, name="p")

    def call(self, inputs):
        x = ops.maximum(inputs, self.smallest)
        # The result does not depend on this factor, so the gradient treats it as a constant. Without it, x^p
        # would underflow to 0 in dead channels, where the root has no gradient, and overflow in strong ones.
        largest = ops.stop_gradient(ops.max(x, axis=(1, 2), keepdims=True))
        mean = ops.mean(ops.power(x / largest, self.p), axis=(1, 2))
        return ops.squeeze(largest, axis=(1, 2)) * ops.power(mean, 1.0 / self.p)

    def get_config(self):
        return {**super().get_config(), "initial_p": self.initial_p, "smallest": self.smallest}


@keras.saving.register_keras_serializable("tfrank")
class RMAC(layers.Layer):
    """R-MAC: the sum of the L2-normalised maxima over each of `rmac_regions`.

    Tolias, Sicre and Jegou, "Particular object retrieval with integral max-pooling of CNN activations",
    arXiv:1511.05879, without its PCA of the regions' vectors.

    Args:
        scales: number of region sizes, integer of at least 1.
    """

    def __init__(self, scales: int = 3, **kwargs):
        super().__init__(**kwargs)
        self.scales = checks.integer("scales", scales, at_least=1)

    def call(self, inputs):
        maxima = [
            ops.max(inputs[:, top : top + side, left : left + side], axis=(1, 2))
            for top, left, side in rmac_regions(*inputs.shape[1:3], scales=self.scales)
        ]
        return sum(l2_normalize(region) for region in maxima)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {**super().get_config(), "scales": self.scales}


def rmac_regions(height: int, width: int, *, scales: int = 3) -> list[tuple[int, int, int]]:
    """The square regions of R-MAC, as (top, left, side).

    At scale l the side is 2 min(height, width) / (l + 1), rounded down. Along the shorter side of the map
    there are l regions, evenly spread. Along the longer side there are more, such that at scale 1 the overlap
    of two neighbours is as close to 40 % as possible.

    >>> rmac_regions(4, 4, scales=2)
    [(0, 0, 4), (0, 0, 2), (0, 2, 2), (2, 0, 2), (2, 2, 2)]
    """
    shorter, longer = min(height, width), max(height, width)

    def miss(more):
        return abs(1 - (longer - shorter) / (more * shorter) - 0.4)

    more = min(range(1, 7), key=miss) if longer > shorter else 0
    regions = []
    for scale in range(1, scales + 1):
        side = max(1, 2 * shorter // (scale + 1))
        tops = _starts(height, side, scale + (more if height > width else 0))
        lefts = _starts(width, side, scale + (more if width > height else 0))
        regions += [(top, left, side) for top in tops for left in lefts]
    return regions


def _starts(length, side, number):
    """The start positions of `number` intervals of length `side`, evenly spread over `length`."""
    if number == 1:
        return [0]
    return [k * (length - side) // (number - 1) for k in range(number)]


@keras.saving.register_keras_serializable("tfrank")
class InnerAveragePooling2D(layers.Layer):
    """Average pooling whose windows may reach over the right and bottom border; only values inside count.

    There are as many windows as cover the map, the first at its top left corner. This is Caffe's pooling and
    PyTorch's `ceil_mode`. (Keras' "same" divides the overhang between both sides.)

    Args:
        size: side of a window, integer.
        stride: distance from one window to the next, integer.
    """

    def __init__(self, size: int, stride: int, **kwargs):
        super().__init__(**kwargs)
        self.size, self.stride = size, stride

    def call(self, inputs):
        height, width = inputs.shape[1:3]
        padding = [[0, 0], [0, self._overhang(height)], [0, self._overhang(width)], [0, 0]]

        def average(x):
            return ops.average_pool(ops.pad(x, padding), self.size, self.stride)

        return average(inputs) / average(ops.ones([1, height, width, 1], inputs.dtype))

    def _overhang(self, length):
        return self.size - length if length < self.size else (self.size - length) % self.stride

    def get_config(self):
        return {**super().get_config(), "size": self.size, "stride": self.stride}
