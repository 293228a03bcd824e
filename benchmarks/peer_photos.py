"""EfficientNet-Lite0 in PyTorch, trained by pytorch-metric-learning, for `benchmarks.photos`."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import torch
from efficientnet_lite_pytorch import EfficientNet
from pytorch_metric_learning.losses import PNPLoss
from torch import nn

from tfrank.models.weights import imagenet_file


def train_peer(
    batches: tf.data.Dataset, stop: Callable[[], bool], *, rate: float, seed: int
) -> Callable[[tf.Tensor], np.ndarray]:
    """Trains on batches until it is to stop, batch norm frozen, by Adam; returns what embeds a batch then."""
    torch.manual_seed(seed)
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(imagenet_file("efficientnet_lite0"), weights_only=True))
    model.eval()  # Batch norm as at test.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    trained = [variable for variable in model.parameters() if variable.requires_grad]
    optimizer, loss = torch.optim.Adam(trained, rate), PNPLoss(variant="Dq")

    def embed(images):
        scaled = (np.asarray(images, np.float32) - 127) / 128
        return model.extract_features(torch.from_numpy(scaled).permute(0, 3, 1, 2)).mean(dim=(2, 3))

    for batch in batches.as_numpy_iterator():
        if stop():
            break
        optimizer.zero_grad()
        loss(embed(batch["image"]), torch.from_numpy(batch["label"])).backward()
        optimizer.step()

    def embed_batch(images):
        with torch.no_grad():
            return embed(images).numpy()

    return embed_batch
