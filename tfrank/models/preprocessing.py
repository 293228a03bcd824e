"""From RGB 0-255 to what a backbone takes. Part of the model, and so of what is exported."""

import keras

from tfrank import checks

MODES = ("rgb", "grey", "inverted_grey")


def preprocess(images, mode: str):
    """Scaled images.

    Args:
        images: `[batch, height, width, 3]` float 0-255, a tensor or a symbolic Keras tensor.
        mode: "rgb" scales to 0-1; "grey" then takes the mean over channels; "inverted_grey" has 1 for
            black, so that ink on paper is what is there.

    Returns:
        `[batch, height, width, 3 or 1]` float in [0, 1].
    """
    checks.one_of("preprocessing", mode, MODES)
    images = images / 255.0
    if mode == "rgb":
        return images
    grey = keras.ops.mean(images, axis=-1, keepdims=True)
    return 1.0 - grey if mode == "inverted_grey" else grey
