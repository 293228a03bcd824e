"""What `benchmarks.gpu` measures of tfrank, on a GPU if there is one."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.loss_settings import NUM_CLASSES, VARIANTS, build, labels_of, rows_of
from benchmarks.peers import MEMORY
from tfrank import PNPLoss, losses
from tfrank.common.devices import gpu
from tfrank.losses.proxies import PROXY_LOSSES
from tfrank.models.embedding import embedding_model
from tfrank.training.step import build_step

tf.get_logger().setLevel("ERROR")  # Every loss is a function of its own, traced once.

NAMES = ["product", *losses.LOSSES, *VARIANTS, *PROXY_LOSSES, "contrastive" + MEMORY]
OUT_OF_MEMORY = tf.errors.ResourceExhaustedError
MODELS = {
    "convnet": dict(filters=64, pooling="average"),
    "mobilenet_v2": dict(backbone="keras/MobileNetV2", batch_norm="trained"),
}
STEPS: dict[str, dict[str, Any]] = {
    "TF32 off": dict(tf32=False),
    "TF32": dict(),
    "TF32, xla": dict(xla=True),
    "TF32, micro-batches of 32": dict(micro_batch_size=32),
}


def use_gpu(tf32: bool = False) -> None:
    """Takes memory as it is needed, so that its peak can be measured. Call before anything is computed."""
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)


def use_cpu() -> None:
    """Hides the GPUs from this process. Call before anything is computed."""
    tf.config.set_visible_devices([], "GPU")


def description() -> str:
    """What is measured."""
    names = [
        tf.config.experimental.get_device_details(device).get("device_name", "a GPU")
        for device in tf.config.list_physical_devices("GPU")
    ]
    return f"TensorFlow {tf.__version__} on {', '.join(names) or 'the CPU'}"


def memory(reset: bool = False) -> tuple[float, float]:
    """Bytes of GPU memory that are held now and at the peak; NaN without a GPU."""
    device = gpu()
    if device is None:
        return np.nan, np.nan
    if reset:
        tf.config.experimental.reset_memory_stats(device)
    info = tf.config.experimental.get_memory_info(device)
    return info["current"], info["peak"]


def can(name: str, batch: int, layout: str, xla: bool) -> bool:
    """Whether that can be measured: proxies are of known classes, and a memory is not compiled."""
    del batch
    return not (name in PROXY_LOSSES and layout == "quarter") and not (xla and name.endswith(MEMORY))


def loss_call(name: str, batch: int, layout: str, xla: bool) -> Callable[[], tf.Tensor]:
    """Value and gradient of a loss; the result is a number that depends on all of both."""
    function, arguments = _function(name, xla), _arguments(name, batch, layout, clustered=False)
    return lambda: function(*arguments)[0]


def results(name: str, batch: int, layout: str, xla: bool, clustered: bool) -> list[np.ndarray]:
    """Value and gradient of a loss, and that by its proxies if it has some."""
    # A memory that has seen other batches is another loss.
    function = _function.__wrapped__ if name.endswith(MEMORY) else _function
    _, *tensors = function(name, xla)(*_arguments(name, batch, layout, clustered))
    return [tensor.numpy() for tensor in tensors]


def step_call(model: str, batch: int, size: int, *, tf32: bool = True, **options) -> Callable[[], tf.Tensor]:
    """A training step with PNP-Dq and Adam on images that are on the device; the result is the loss."""
    use_gpu(tf32)
    keras.utils.set_random_seed(0)
    network = embedding_model(image_size=size, embedding_dim=512, **MODELS[model])
    optimizer = keras.optimizers.Adam(1e-5)
    optimizer.build(network.trainable_variables)
    strategy = tf.distribute.get_strategy()
    step = build_step(network, PNPLoss("dq"), optimizer, strategy=strategy, **options)
    images = np.random.default_rng(0).integers(0, 255, [batch, size, size, 3], np.uint8)
    inputs = {"image": tf.constant(images), "label": tf.constant(np.arange(batch) // 4)}
    return lambda: step(inputs).loss


def _arguments(name, batch, layout, clustered):
    labels = labels_of(layout, batch)
    if name in PROXY_LOSSES:
        labels = labels % NUM_CLASSES
    return tf.constant(labels), tf.constant(rows_of(labels, clustered))


@functools.cache
def _function(name, xla):
    """A function of labels and embeddings: a number of all results, then the results."""
    loss, layer = (_product, None) if name == "product" else build(name)

    def value_and_gradients(labels, embeddings):
        sources = (embeddings, layer.proxies.value) if layer else (embeddings,)
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            value = loss(labels, layer(embeddings) if layer else embeddings)
        gradients = tape.gradient(value, sources)
        return tf.add_n([value, *(gradient[0, 0] for gradient in gradients)]), value, *gradients

    return tf.function(value_and_gradients, jit_compile=xla, autograph=False)


def _product(labels, embeddings):
    """A number whose value and gradient take the bare similarity product and its backward."""
    del labels
    unit = tf.math.l2_normalize(embeddings, axis=1)

    @tf.custom_gradient
    def first(similarity):
        # The similarities stand in for an upstream gradient, so that none has to be made.
        return similarity[0, 0], lambda upstream: upstream * similarity

    return first(tf.matmul(unit, unit, transpose_b=True))
