"""Convolutional networks from preprocessed images to features."""

from keras import layers


def convnet(images, *, blocks: int, filters: int):
    """The small network of few-shot learning: blocks of 3x3 convolution, batch norm, ReLU, 2x2 max pooling.

    Batch norm as PyTorch's defaults (momentum 0.9 in Keras' sense, epsilon 1e-5), and over the global
    batch, so that several replicas compute what one device does.

    Args:
        images: `[batch, height, width, channels]` symbolic tensor.
        blocks: how many; each halves height and width, rounding up, so that borders count.
        filters: channels of each.

    Returns:
        `[batch, features]`, the last feature map flattened.
    """
    x = images
    for _ in range(blocks):
        # No bias: batch norm takes it out again, and Adam would blow up the rounding noise of its gradient.
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, synchronized=True)(x)
        x = layers.ReLU()(x)
        x = layers.MaxPooling2D(2, padding="same")(x)
    return layers.Flatten()(x)
