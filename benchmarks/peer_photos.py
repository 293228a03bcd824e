"""MobileNetV2 in PyTorch, trained by pytorch-metric-learning, for `benchmarks.photos`."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import torch
from torch import nn

from tfrank.models.mobilenet import STAGES, current_names
from tfrank.models.preprocessing import preprocess
from tfrank.models.pytorch_files import read_state_dict
from tfrank.models.weights import file_of


class Block(nn.Module):
    """An inverted residual, its modules named as torchvision's."""

    def __init__(self, inputs, outputs, expansion, stride):
        super().__init__()
        inner = inputs * expansion
        parts = [convolved(inputs, inner, 1)] if expansion != 1 else []
        parts += [convolved(inner, inner, 3, stride, groups=inner)]
        parts += [nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv, self.shortcut = nn.Sequential(*parts), stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.conv(x) if self.shortcut else self.conv(x)


def convolved(inputs, outputs, size, stride=1, groups=1):
    """Convolution, batch norm and ReLU6."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())


class MobileNetV2(nn.Module):
    """From preprocessed images to pooled features."""

    def __init__(self):
        super().__init__()
        parts, inputs = [convolved(3, 32, 3, 2)], 32
        for expansion, outputs, blocks, stride in STAGES:
            for block in range(blocks):
                parts.append(Block(inputs, outputs, expansion, 1 if block else stride))
                inputs = outputs
        self.features = nn.Sequential(*parts, convolved(320, 1280, 1))

    def forward(self, x):
        return self.features(x).mean(dim=(2, 3))


def train_peer(batches: tf.data.Dataset, config) -> Callable[[tf.Tensor], np.ndarray]:
    """Trains on the batches, batch norm frozen, by Adam at the config's rate; what embeds a batch then."""
    from pytorch_metric_learning.losses import PNPLoss

    torch.manual_seed(config.seed)
    model = MobileNetV2()
    state = current_names(read_state_dict(file_of(config.model.weights)))
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    model.eval()  # Batch norm as at test.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], config.train.learning_rate
    )
    loss = PNPLoss(variant="Dq", alpha=config.loss.alpha, b=config.loss.b, anneal=config.loss.temperature)

    def embed(images):
        scaled = preprocess(np.asarray(images, np.float32), "imagenet_rgb")
        return model(torch.from_numpy(np.array(scaled)).permute(0, 3, 1, 2))

    for batch in batches.as_numpy_iterator():
        optimizer.zero_grad()
        loss(embed(batch["image"]), torch.from_numpy(batch["label"])).backward()
        optimizer.step()

    def embed_batch(images):
        with torch.no_grad():
            return embed(images).numpy()

    return embed_batch
