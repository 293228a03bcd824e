"""The embedding model: preprocessing, backbone, one linear layer."""

import keras

from tfrank.models.backbones import convnet
from tfrank.models.preprocessing import preprocess


def embedding_model(
    *, image_size: int, preprocessing: str, blocks: int, filters: int, embedding_dim: int
) -> keras.Model:
    """`[batch, image_size, image_size, 3]` float RGB 0-255 to `[batch, embedding_dim]` float32.

    Embeddings come out as the linear layer gives them; losses, evaluation and export normalise.
    """
    images = keras.Input([image_size, image_size, 3], dtype="float32", name="images")
    features = convnet(preprocess(images, preprocessing), blocks=blocks, filters=filters)
    # Under mixed precision too, what is ranked is float32.
    embedding = keras.layers.Dense(embedding_dim, dtype="float32", name="embedding")(features)
    return keras.Model(images, embedding, name="embedding_model")


def concatenated(model: keras.Model) -> keras.Model:
    """The model itself (placeholder until several outputs are merged in)."""
    return model
