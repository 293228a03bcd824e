"""One training step, the same for one device and for many."""

from collections.abc import Callable

import keras
import tensorflow as tf

Step = Callable[[dict[str, tf.Tensor]], tf.Tensor]


def build_step(
    model: keras.Model,
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    optimizer: keras.optimizers.Optimizer,
    *,
    strategy: tf.distribute.Strategy,
    l2: float = 0.0,
) -> Step:
    """A function of a (distributed) batch that takes one step and returns the loss of the global batch.

    Args:
        model: from float images `[batch, height, width, 3]` to `[batch, dim]` embeddings.
        loss: of labels and embeddings; its values, and gradients, are summed over replicas.
        optimizer: built for the model's trainable variables.
        strategy: the one in whose scope model and optimizer were made.
        l2: weight decay added to the gradient of every trainable variable: l2 x variable.
    """
    replicas = strategy.num_replicas_in_sync

    def replica_step(batch):
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            embeddings = model(tf.cast(batch["image"], tf.float32), training=True)
            value = loss(batch["label"], embeddings)
            # What every replica adds is counted once: gradients are summed over replicas.
            penalties = [l2 * tf.nn.l2_loss(variable) for variable in variables] if l2 else []
            shares = [tf.cast(penalty / replicas, value.dtype) for penalty in [*penalties, *model.losses]]
            total = tf.add_n([value, *shares])
            scaled = optimizer.scale_loss(total)
        optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables))
        return value

    @tf.function
    def step(batch):
        values = strategy.run(replica_step, args=(batch,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)

    return step
