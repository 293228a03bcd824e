"""The backend of Keras, which has to be TensorFlow."""

import os

# What Keras cannot import if the backend that is set is not installed.
_OTHERS = ("jax", "torch", "openvino", "mlx")


def check() -> None:
    """Raises ImportError, in one sentence, if Keras runs on another backend than TensorFlow."""
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name not in _OTHERS:
            raise
        backend = os.environ.get("KERAS_BACKEND", error.name)
    else:
        backend = keras.config.backend()
    if backend != "tensorflow":
        raise ImportError(
            f"tfrank needs Keras on TensorFlow, and Keras is set to the backend {backend!r}: set the"
            " environment variable KERAS_BACKEND=tensorflow before Keras is imported."
        ) from None
