"""One training step on any number of devices: the whole batch at once, or multi-stage for any batch size.

Multi-stage backpropagation (Revaud et al., arXiv 1906.07589, section 3.3). Let e_k = f(x_k; w) be the
embeddings of micro-batch k, and L(e_1, ..., e_n) a loss of all of them. The chain rule gives

    dL/dw = sum_k (de_k/dw)^T g_k,        g_k = dL/de_k

Only g depends on all micro-batches, and computing g needs the embeddings but no activations:
  1. embed the micro-batches one after another, keeping only e_k;
  2. compute g = dL/de;
  3. embed them again one after another, now with a tape, and add up (de_k/dw)^T g_k.
Memory is that of one micro-batch plus all embeddings. Time is at most 4/3 of the plain step's, since a
forward pass costs half a backward pass. The gradient equals the plain step's exactly if f is the same
function of w in both passes and in both kinds of step. Dropout draws the same masks in both passes, because
the state of its random numbers is restored between 1 and 3. A layer whose numbers have no state in the model
may draw others; then the step fails. Batch norm in training mode normalises each micro-batch by itself,
equally in both passes, and its moving statistics advance once.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfrank.common import checks, loss_layers
from tfrank.training.optimizers import named

_ZERO = tf.UnconnectedGradients.ZERO
# Embeddings of two passes differ at most by this share of their norm: rounding does, another mask does not.
_REPLAYED = 0.01
_NOT_REPLAYED = (
    "A layer draws random numbers that it cannot draw again, so that the gradients of micro-batches would be"
    " wrong. Take Keras' own layers, or give it keras.random.SeedGenerator() as an attribute and its draws"
    " seed=that. Or train without micro-batches."
)


class Outcome(NamedTuple):
    """The result of a step.

    Attributes:
        loss: the loss of the global batch, a scalar.
        embeddings: the model's output before the update; each replica has its own rows.
    """

    loss: tf.Tensor
    embeddings: Any


Step = Callable[[dict[str, tf.Tensor]], Outcome]


def build_step(
    model: keras.Model,
    loss: Callable[..., tf.Tensor],
    optimizer: keras.optimizers.Optimizer,
    *,
    strategy: tf.distribute.Strategy,
    l2: float = 0.0,
    no_decay: Sequence[str] = (),
    clip_norm: float = 0.0,
    micro_batch_size: int = 0,
    xla: bool = False,
    after: Callable[[], None] = lambda: None,
) -> Step:
    """Returns a function that takes one training step on a (distributed) batch.

    Args:
        model: maps float images `[batch, height, width, 3]` to `[batch, dim]` embeddings, or several.
        loss: function of labels, the model's output and, as keyword arguments, what a batch has besides
            "image" and "label"; values and gradients are summed over replicas.
        optimizer: built for the model's trainable variables.
        strategy: the strategy in whose scope model and optimizer were created.
        l2: weight decay added to the gradient of trainable variables: l2 x variable.
        no_decay: names of variables without this decay, see `optimizers.named`.
        clip_norm: maximum norm of the gradient of the global batch, decay included. A longer gradient is
            scaled down to it. 0: no clipping.
        micro_batch_size: images that a replica embeds at once. 0: all of them, in one stage.
        xla: whether XLA compiles the model's forward and backward pass.
        after: called in the same graph after the variables are updated.
    """
    replicas = strategy.num_replicas_in_sync
    check_combination(model, replicas, micro_batch_size, xla)

    def embed(images):
        return model(tf.cast(images, tf.float32), training=True)

    if xla:
        embed = compiled(embed)
    spared = named([v.path for v in model.trainable_variables], no_decay)
    decayed = [v for v in model.trainable_variables if v.path not in spared] if l2 else []

    def replica_step(batch):
        variables = _values(model.trainable_variables)
        others = {name: rows for name, rows in batch.items() if name not in ("image", "label")}

        def objective(embeddings, penalties):
            """The loss, and the minimised value: with penalties, and scaled for mixed precision."""
            value = loss(batch["label"], embeddings, **others)
            penalties = [*penalties, *(l2 * tf.nn.l2_loss(variable) for variable in decayed)]
            # Every replica adds the penalties and gradients are summed, so divide to count them once.
            shares = [tf.cast(penalty / replicas, value.dtype) for penalty in penalties]
            return value, optimizer.scale_loss(tf.add_n([value, *shares]))

        if micro_batch_size:
            value, embeddings, gradients = multi_stage_gradients(
                model, batch["image"], objective, micro_batch_size, embed
            )
        else:
            with tf.GradientTape() as tape:
                embeddings = embed(batch["image"])
                value, total = objective(embeddings, _weight_penalties(model) if xla else model.losses)
            gradients = tape.gradient(total, variables, unconnected_gradients=_ZERO)
        gradients = of_global_batch(gradients, optimizer, replicas, clip_norm)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return Outcome(value, embeddings)

    @tf.function(autograph=False)
    def step(batch):
        outcome = strategy.run(replica_step, args=(batch,))
        after()
        return Outcome(
            strategy.reduce(tf.distribute.ReduceOp.SUM, outcome.loss, axis=None), outcome.embeddings
        )

    return step


def compiled(embed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the function compiled by XLA; its outputs still say which layers of a loss they passed."""
    marks = []

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def inside(inputs):
        outputs = embed(inputs)
        marks[:] = loss_layers.marks_of(outputs)
        return outputs

    return lambda inputs: loss_layers.with_marks(inside(inputs), marks)


def check_combination(model: keras.Model, replicas: int, micro_batch_size: int, xla: bool = False) -> None:
    """Raises InputError for combinations that TensorFlow does not support on several devices."""
    if micro_batch_size and replicas > 1 and any(map(_is_synchronised, model._flatten_layers())):
        raise checks.InputError(
            "micro_batch_size on several devices needs batch norm to be frozen: in training mode its"
            " statistics are shared between devices, which TensorFlow does not do in a loop. Freeze it, or"
            " train on one device."
        )
    if xla and replicas > 1:
        raise checks.InputError(
            "xla works on one device only: TensorFlow cannot compile communication between devices."
        )


def of_global_batch(
    gradients: list[tf.Tensor],
    optimizer: keras.optimizers.Optimizer,
    replicas: int,
    clip_norm: float = 0.0,
) -> list[tf.Tensor]:
    """The gradients for the optimizer, which sums over replicas: clipped by the norm of the global batch.

    With loss scaling they are the same on all replicas, so that all agree on whether they are finite.
    """
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if replicas > 1 and (clip_norm or scaled):
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        gradients = [gradient / replicas for gradient in summed]
    if clip_norm:
        bound = optimizer.scale_loss(tf.constant(clip_norm / replicas, gradients[0].dtype))
        gradients, _ = tf.clip_by_global_norm(gradients, bound)
    return gradients


def multi_stage_gradients(
    model: keras.Model,
    inputs: Any,
    objective: Callable[[Any, list[tf.Tensor]], tuple[tf.Tensor, tf.Tensor]],
    micro_batch_size: int,
    embed: Callable[[tf.Tensor], Any] | None = None,
) -> tuple[tf.Tensor, Any, list[tf.Tensor]]:
    """The loss, the embeddings, and the gradients with respect to the model's trainable variables.

    Args:
        model: maps inputs to embeddings, one tensor or a structure of tensors.
        inputs: what the model takes, a tensor `[batch, ...]` of any dtype or a structure of such tensors.
            They stay on their device, and micro-batches are sliced from them, unchanged.
        objective: function of the embeddings of the whole batch and of the weight-regularisation losses.
            Returns the loss, and the scalar to differentiate, which may also depend on weights directly.
        micro_batch_size: the last micro-batch may be smaller.
        embed: the model in training mode, such as a compiled form. None: the model itself.

    Raises:
        InputError: a layer adds a loss of its activations.
    """
    embed = embed or (lambda inputs: model(inputs, training=True))
    weights, state = _values(model.trainable_variables), _values(model.non_trainable_variables)
    before = [tf.identity(variable) for variable in state]
    size, number = tf.nest.flatten(inputs)[0].shape[0], -(-rows_of(inputs) // micro_batch_size)
    rows = micro_batch_size if size is not None and size % micro_batch_size == 0 else None

    def part_of(values, k):
        return _slice(values, k * micro_batch_size, (k + 1) * micro_batch_size, rows)

    def embed_part(k):
        # Slice on the host, where images stay, so that a device only gets one micro-batch.
        with tf.device("CPU:0"):
            part = tf.nest.map_structure(lambda values: part_of(values, k), inputs)
        return embed(part)

    joined = _join_parts(embed_part, number, _outputs_of(model, embed, inputs), rows)

    with tf.GradientTape() as tape:
        tape.watch(joined)
        value, total = objective(joined, _weight_penalties(model))
    upstream, direct = tape.gradient(total, (joined, weights), unconnected_gradients=_ZERO)

    # Restore the state after the first pass has ended and before the second begins.
    with tf.control_dependencies(tf.nest.flatten(upstream)):
        restored = [variable.assign(old) for variable, old in zip(state, before)]

    def add(k, sums):
        with tf.GradientTape() as tape:
            embeddings = embed_part(k)
        part, before = (
            tf.nest.map_structure(lambda values: part_of(values, k), one) for one in (upstream, joined)
        )
        gradients = tape.gradient(embeddings, weights, part, _ZERO)
        with tf.control_dependencies(_assert_replayed(embeddings, before)):
            return k + 1, [total + gradient for total, gradient in zip(sums, gradients)]

    with tf.control_dependencies(restored):
        direct = [tf.identity(gradient) for gradient in direct]
        _, gradients = tf.while_loop(lambda k, _: k < number, add, [0, direct], parallel_iterations=1)
    return value, joined, gradients


def rows_of(inputs: Any) -> tf.Tensor:
    """Returns the number of rows of a structure of inputs, an int32 scalar."""
    first = tf.nest.flatten(inputs)[0]
    return tf.cast(first.nrows(), tf.int32) if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]


def _slice(values, start, stop, rows):
    """Rows `start` to `stop` of a tensor, at most to its end; their number is `rows` if that is known."""
    if isinstance(values, tf.RaggedTensor):
        return values[start:stop]
    return tf.ensure_shape(values[start:stop], [rows, *values.shape[1:]])


def _outputs_of(model, embed, inputs):
    """Specifies the outputs of a model; the size of their batch is not used."""
    if isinstance(model, keras.Sequential) and model.outputs:
        return model.outputs[0]
    if hasattr(model, "outputs") and not isinstance(model, keras.Sequential):
        return model.output
    specs = tf.nest.map_structure(tf.type_spec_from_value, inputs)
    return tf.function(embed, autograph=False).get_concrete_function(specs).structured_outputs


def _join_parts(embed_part, number, outputs, rows):
    """The embeddings of all micro-batches, computed in sequence and joined; `outputs` specifies one's."""
    marks = []

    def array_of(output):
        shape = [rows, *output.shape[1:]]
        return tf.TensorArray(output.dtype, number, element_shape=shape, infer_shape=False)

    def embed_next(k, arrays):
        embeddings = embed_part(k)
        marks[:] = loss_layers.marks_of(embeddings)
        return k + 1, tf.nest.map_structure(lambda array, e: array.write(k, e), arrays, embeddings)

    arrays = tf.nest.map_structure(array_of, outputs)
    _, arrays = tf.while_loop(lambda k, _: k < number, embed_next, [0, arrays], parallel_iterations=1)
    return loss_layers.with_marks(tf.nest.map_structure(lambda array: array.concat(), arrays), marks)


def _assert_replayed(again, first):
    """Operations that fail if the second pass gave other embeddings than the first; NaN passes."""
    found = []
    for one, other in zip(tf.nest.flatten(again), tf.nest.flatten(first)):
        if one.dtype.is_floating:
            one, other = tf.cast(one, tf.float32), tf.cast(other, tf.float32)
            found.append(
                tf.debugging.Assert(~(tf.norm(one - other) > _REPLAYED * tf.norm(other)), [_NOT_REPLAYED])
            )
    return found


def _weight_penalties(model):
    """Weight-regularisation losses. Activity losses are not supported: they belong to other graphs."""
    regularised = [v for v in model.trainable_variables if v.regularizer is not None]
    if len(model.losses) > len(regularised):
        raise checks.InputError(
            "A layer adds a loss of its activations (an activity regulariser, or add_loss), which"
            " micro_batch_size and xla do not support. Remove it, or train without both."
        )
    return [variable.regularizer(variable) for variable in regularised]


def _is_synchronised(layer):
    """Whether a layer's forward pass in training mode communicates with other devices."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and layer.synchronized


def _values(variables):
    """The TensorFlow variables inside Keras' variables, for which a tape can return zero gradients."""
    return [variable.value for variable in variables]
