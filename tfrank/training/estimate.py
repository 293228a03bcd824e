"""Memory estimate of training, before it starts."""

import keras
import numpy as np
import tensorflow as tf

# Number of similarity matrices that a loss holds at once, each a replica's queries x the global batch.
SIMILARITY_MATRICES = 4
# Operations whose result is their input, and those that read weights or hold constants.
_SAME = ("Identity", "Reshape", "Squeeze", "ExpandDims")
_NO_ACTIVATIONS = ("ReadVariableOp", "Const", "Placeholder", "Shape")


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
    itself, and its gradient. Where layers consist of others, as in vision transformers, they are the tensors
    that the gradient reads, found in its graph.

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
    if any(list(layer._flatten_layers(include_self=False)) for layer in layers):
        kept = _read_by_gradient(model, at_once)
    else:
        kept = 2 * at_once * sum(activations(layer) for layer in layers if layer._inbound_nodes)
    return {
        "weights": size(model.variables),
        "gradients": size(model.trainable_variables),
        "optimizer": size(optimizer.variables),
        "activations": kept,
        "images": (4 * at_once + (0 if micro_batch_size else share)) * pixels,
        "similarities": SIMILARITY_MATRICES * share * batch_size * 4,
    }


def _read_by_gradient(model: keras.Model, batch: int) -> int:
    """The bytes of the tensors that a gradient of the model reads, for so many images, by its graph alone."""
    forward = []

    @tf.function(autograph=False)
    def gradients(images):
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(images, training=True))
            total = tf.add_n([tf.reduce_sum(tf.cast(output, tf.float32)) for output in outputs])
        forward.extend(operation.name for operation in total.graph.get_operations())
        variables = [variable.value for variable in model.trainable_variables]
        return tape.gradient(total, variables, unconnected_gradients="zero")

    images = tf.TensorSpec([batch, *model.input_shape[1:]], tf.float32)
    graph, read = gradients.get_concrete_function(images).graph, {}
    before = set(forward)
    for operation in graph.get_operations():
        # Recomputed blocks are behind the forward pass, and read their inputs alone.
        for tensor in map(_origin, operation.inputs) if operation.name not in before else ():
            kept = tensor.op.name in before and tensor.op.type not in _NO_ACTIVATIONS
            if kept and tensor.dtype.is_floating and tensor.shape.is_fully_defined():
                read[tensor.name] = tensor.shape.num_elements() * tensor.dtype.size
    return sum(read.values())


def _origin(tensor):
    while tensor.op.type in _SAME:
        tensor = tensor.op.inputs[0]
    return tensor
