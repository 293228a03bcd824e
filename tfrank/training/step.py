"""One training step: the whole batch at once, or in stages for a batch of any size; on any number of devices.

Multi-stage backpropagation (Revaud et al., arXiv 1906.07589, section 3.3). Let e_k = f(x_k; w) be the
embeddings of micro-batch k, and L(e_1, ..., e_n) a loss of all of them. By the chain rule

    dL/dw = sum_k (de_k/dw)^T g_k,        g_k = dL/de_k

so the micro-batches meet in g alone, which needs the embeddings and no activations:
  1. embed the micro-batches one after another, keeping e_k only;
  2. take g = dL/de;
  3. embed them again, one after another, now with a tape, and add up (de_k/dw)^T g_k.
Memory is that of one micro-batch, and all embeddings; time is at most 4/3 of the plain step's, for a
forward pass costs half a backward pass. The gradient is the plain step's exactly where f is the same
function of w both times and in both steps: dropout draws the same masks again, because the state of
its random numbers is put back between 1 and 3; batch norm in training mode normalises a micro-batch
by itself, in both passes alike, and its moving statistics advance once.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfrank import checks

Step = Callable[[dict[str, tf.Tensor]], tf.Tensor]

_ZERO = tf.UnconnectedGradients.ZERO


def build_step(
    model: keras.Model,
    loss: Callable[[tf.Tensor, Any], tf.Tensor],
    optimizer: keras.optimizers.Optimizer,
    *,
    strategy: tf.distribute.Strategy,
    l2: float = 0.0,
    micro_batch_size: int = 0,
) -> Step:
    """A function of a (distributed) batch that takes one step and returns the loss of the global batch.

    Args:
        model: from float images `[batch, height, width, 3]` to `[batch, dim]` embeddings, or several.
        loss: of labels and the model's output; its values, and gradients, are summed over replicas.
        optimizer: built for the model's trainable variables.
        strategy: the one in whose scope model and optimizer were made.
        l2: weight decay added to the gradient of every trainable variable: l2 x variable.
        micro_batch_size: images that a replica embeds at once; its share of the batch has to be a
            multiple. 0: all of them, in one stage.
    """
    replicas = strategy.num_replicas_in_sync
    if micro_batch_size and replicas > 1 and any(map(_is_synchronised, model._flatten_layers())):
        raise checks.InputError(
            "micro_batch_size on several devices needs batch norm to be frozen: in training mode its"
            " statistics are shared between devices, which TensorFlow does not do in a loop. Freeze it, or"
            " train on one device."
        )

    def replica_step(batch):
        variables = model.trainable_variables
        images, labels = batch["image"], batch["label"]

        def scaled(value, penalties):
            # What every replica adds is counted once: gradients are summed over replicas.
            shares = [tf.cast(penalty / replicas, value.dtype) for penalty in penalties]
            return optimizer.scale_loss(tf.add_n([value, *shares]))

        def decay():
            return [l2 * tf.nn.l2_loss(variable) for variable in variables] if l2 else []

        if not micro_batch_size:
            with tf.GradientTape() as tape:
                value = loss(labels, model(tf.cast(images, tf.float32), training=True))
                total = scaled(value, [*decay(), *model.losses])
            gradients = tape.gradient(total, variables)
        else:
            value, gradients = multi_stage_gradients(
                model, images, lambda embeddings: loss(labels, embeddings), optimizer, micro_batch_size
            )
            with tf.GradientTape() as tape:
                total = scaled(tf.zeros_like(value), [*decay(), *_weight_penalties(variables)])
            penalties = tape.gradient(total, _values(variables), unconnected_gradients=_ZERO)
            gradients = [one + tf.cast(other, one.dtype) for one, other in zip(gradients, penalties)]
        optimizer.apply_gradients(zip(gradients, variables))
        return value

    @tf.function
    def step(batch):
        values = strategy.run(replica_step, args=(batch,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)

    return step


def multi_stage_gradients(
    model: keras.Model,
    images: tf.Tensor,
    loss: Callable[[Any], tf.Tensor],
    optimizer: keras.optimizers.Optimizer,
    micro_batch_size: int,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The loss, and the gradients of the (scaled) loss with respect to the model's trainable variables.

    Args:
        model: from float images to embeddings, one tensor or a structure of them.
        images: `[batch, height, width, 3]` of any dtype; they stay where they are, and micro-batches
            are cut out of them.
        loss: of the embeddings of the whole batch.
        optimizer: for its loss scale.
        micro_batch_size: divides batch.
    """
    weights, state = _values(model.trainable_variables), _values(model.non_trainable_variables)
    before = [tf.identity(variable) for variable in state]
    size = images.shape[0]
    if size is None or size % micro_batch_size:
        raise checks.invalid(
            "micro_batch_size", f"a divisor of a replica's {size} images, a fixed number", micro_batch_size
        )
    number = size // micro_batch_size

    def embed(k):
        # On the host, where the images stay: a device only ever gets a part of them.
        with tf.device("CPU:0"):
            part = images[k * micro_batch_size : (k + 1) * micro_batch_size]
        part = tf.ensure_shape(part, [micro_batch_size, *images.shape[1:]])
        return model(tf.cast(part, tf.float32), training=True)

    parts = tf.map_fn(
        embed,
        tf.range(number),
        fn_output_signature=tf.nest.map_structure(
            lambda output: tf.TensorSpec(output.shape, output.dtype),
            model.compute_output_spec(keras.KerasTensor([micro_batch_size, *images.shape[1:]])),
        ),
        parallel_iterations=1,
    )
    joined = tf.nest.map_structure(lambda part: tf.reshape(part, [-1, *part.shape[2:]]), parts)

    with tf.GradientTape() as tape:
        tape.watch(joined)
        value = loss(joined)
        scaled = optimizer.scale_loss(value)
    upstream = tape.gradient(scaled, joined, unconnected_gradients=_ZERO)
    upstream = tf.nest.map_structure(lambda g, part: tf.reshape(g, tf.shape(part)), upstream, parts)

    # Before the second pass begins, and after the first has ended.
    with tf.control_dependencies(tf.nest.flatten(upstream)):
        restored = [variable.assign(old) for variable, old in zip(state, before)]

    def add(k, sums):
        with tf.GradientTape() as tape:
            embeddings = embed(k)
        part = tf.nest.map_structure(lambda g: g[k], upstream)
        gradients = tape.gradient(embeddings, weights, part, _ZERO)
        return k + 1, [total + gradient for total, gradient in zip(sums, gradients)]

    with tf.control_dependencies(restored):
        start = [tf.zeros_like(weight) for weight in weights]
        _, gradients = tf.while_loop(lambda k, _: k < number, add, [0, start], parallel_iterations=1)
    return value, gradients


def _is_synchronised(layer):
    """Whether a layer's forward pass in training mode talks to other devices."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and layer.synchronized


def _weight_penalties(variables):
    """What Keras' regularisers of weights add to the loss."""
    regularised = (variable for variable in variables if variable.regularizer is not None)
    return [variable.regularizer(variable) for variable in regularised]


def _values(variables):
    """The TensorFlow variables inside Keras' own, which a gradient can be zero for."""
    return [variable.value for variable in variables]
