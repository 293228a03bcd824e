"""The blocks of a vision transformer: learning rates, freezing, recomputing, stochastic depth."""

import itertools
import re
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks

# The name of a block, and the part of a weight's path that names its block.
_NAME = r"(?:layers|transformer_block|blocks|encoder_block)_\d+"
_BLOCK = re.compile(rf".*?\b{_NAME}/")
# The part of a weight's path that names the network and a layer of it.
_LAYER = re.compile(r"[^/]+/[^/]+/")


def layer_multipliers(network: keras.Model, decay: float) -> dict[str, float]:
    """Learning-rate multipliers that fall towards the input, by the beginnings of the paths of weights.

    Of n blocks the last has decay, the one before decay^2, and the embedding of the patches decay^(n + 1).
    Layers behind the blocks have no entry. Bao et al., BEiT (arXiv 2106.08254), for fine-tuning of vision
    transformers.

    >>> from types import SimpleNamespace as Some
    >>> weights = [Some(path=f"vit/{path}/kernel") for path in ("patches", "layers_0", "layers_1", "norm")]
    >>> layer_multipliers(Some(trainable_variables=weights), 0.5)
    {'vit/layers_0/': 0.25, 'vit/layers_1/': 0.5, 'vit/patches/': 0.125}
    """
    embedding, blocks = _scopes([variable.path for variable in network.trainable_variables])
    depths = {block: len(blocks) - number for number, block in enumerate(blocks)}
    depths |= dict.fromkeys(embedding, len(blocks) + 1)
    return {part: decay**depth for part, depth in depths.items()}


def freeze_first(network: keras.Model, blocks: int) -> None:
    """Freezes the embedding of the patches and the first blocks of a vision transformer.

    Args:
        network: the result of `hub.hub_network`.
        blocks: number of blocks, at most all; 0 freezes nothing.

    Raises:
        InputError: there are fewer blocks.
    """
    embedding, known = _scopes([variable.path for variable in network.trainable_variables])
    if checks.integer("frozen_blocks", blocks, at_least=0) > len(known):
        raise checks.invalid("frozen_blocks", f"at most the {len(known)} blocks of {network.name}", blocks)
    frozen = (*embedding, *known[:blocks]) if blocks else ()
    for variable in network.trainable_variables:
        if variable.path.startswith(frozen):
            variable.trainable = False


def recompute_blocks(network: keras.Model) -> None:
    """Has a gradient compute the activations of each block again, so that only their inputs are kept.

    It takes 40 to 57 % of the memory, and 21 to 36 % more time. Values and gradients
    stay the same, also of blocks that `StochasticDepth` leaves out. Chen et al., arXiv 1604.06174.

    Args:
        network: the result of `hub.hub_network`.
    """
    for block in _blocks(network):
        # The gradient computes outside of the call of a model: a block drawn there would be another one.
        inner = block.call if isinstance(block.call, _LeftOut) else block
        inner.call = _recomputed(inner.call)


def _recomputed(call: Callable) -> Callable:
    def again(x, *args, **kwargs):
        rest: list = []

        def first(x):
            found, *rest[:] = _parts(call(x, *args, **kwargs))
            return found

        return _joined(tf.recompute_grad(first)(x), rest)

    return again


def _parts(outputs):
    """The outputs of a block. Some give more than the tokens, such as attention scores, or None for them."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _joined(tokens, rest):
    return (tokens, *rest) if rest else tokens


class StochasticDepth(keras.layers.Layer):
    """Leaves out blocks of a vision transformer at random in training; passes its own input on unchanged.

        block(x) becomes x + m (block(x) - x) / (1 - p),    m = 0 with probability p, else 1, for each image

    p rises linearly from 0 at the first block to `rate` at the last, as in Huang et al. (arXiv 1603.09382).
    The layer holds the random state of all blocks, so that checkpoints and the second stage of multi-stage
    backpropagation have it.

    Args:
        network: the result of `hub.hub_network`.
        rate: 0 to below 1.
    """

    def __init__(self, network: keras.Model, rate: float, **kwargs):
        super().__init__(**kwargs)
        checks.number("drop_path", rate, at_least=0, below=1)
        blocks = _blocks(network)
        self.seeds = [keras.random.SeedGenerator() for _ in blocks]
        for block, share, seed in zip(blocks, np.linspace(0, rate, len(blocks)), self.seeds):
            block.call = _LeftOut(block, float(share), seed)

    def call(self, inputs):
        """Returns the input."""
        return inputs


class _LeftOut:
    """The call of a block that is left out at random in training; see `StochasticDepth`."""

    def __init__(self, block, share, seed):
        self.call = block.call
        self._block, self._share, self._seed = block, share, seed

    def __call__(self, x, *args, **kwargs):
        y, *rest = _parts(self.call(x, *args, **kwargs))
        # Not every block has the argument `training`.
        if not getattr(self._block._get_call_context(), "training", None) or not self._share:
            return _joined(y, rest)
        draws = keras.random.uniform([keras.ops.shape(x)[0], *[1] * (len(x.shape) - 1)], seed=self._seed)
        kept = keras.ops.cast(draws >= self._share, y.dtype) / (1 - self._share)
        return _joined(x + kept * (y - x), rest)


def _blocks(network: keras.Model) -> list[keras.layers.Layer]:
    """The blocks, from input to output; Swin's stages, which have blocks of their own, are none."""

    def inside(layer):
        return [part for part in layer._flatten_layers(include_self=False) if re.fullmatch(_NAME, part.name)]

    return [layer for layer in inside(network) if not inside(layer)]


def _scopes(paths: list[str]) -> tuple[list[str], list[str]]:
    """The parts of paths that name the embedding of the patches, and the blocks, from input to output."""
    blocks = dict.fromkeys(found[0] for path in paths if (found := _BLOCK.match(path)))
    before = itertools.takewhile(lambda path: not _BLOCK.match(path), paths)
    return list(dict.fromkeys(_LAYER.match(path)[0] for path in before)), list(blocks)
