"""Memory estimate of training, before it starts."""

import keras
import numpy as np

# Number of similarity matrices that a loss holds at once, each a replica's queries x the global batch.
SIMILARITY_MATRICES = 4


def memory_estimate(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    *,
    batch_size: int,
    replicas: int = 1,
    micro_batch_size: int = 0,
) -> dict[str, int]:
    """Estimates the bytes needed on one device, by purpose, to within a factor of two.

    Activations are the outputs of all layers for the images embedded at once. Each counts twice: the output
    itself, and its gradient.

    Args:
        model: a model whose layers have known output shapes.
        optimizer: a built optimizer.
        batch_size: batch size of all replicas together.
        replicas: number of devices that share the batch.
        micro_batch_size: images that a device embeds at once; 0: its share of the batch.
    """
    share = batch_size // replicas
    at_once = micro_batch_size or share
    pixels = int(np.prod(model.input_shape[1:]))

    def size(variables):
        return sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables)

    def activations(layer):
        outputs = layer.output if isinstance(layer.output, list | tuple) else [layer.output]
        width = 2 if layer.compute_dtype in ("float16", "bfloat16") else 4
        return sum(int(np.prod([d for d in output.shape if d])) for output in outputs) * width

    layers = [layer for layer in model._flatten_layers() if not isinstance(layer, keras.Model)]
    return {
        "weights": size(model.variables),
        "gradients": size(model.trainable_variables),
        "optimizer": size(optimizer.variables),
        "activations": 2 * at_once * sum(activations(layer) for layer in layers if layer._inbound_nodes),
        "images": (4 * at_once + (0 if micro_batch_size else share)) * pixels,
        "similarities": SIMILARITY_MATRICES * share * batch_size * 4,
    }
