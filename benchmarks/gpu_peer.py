"""What `benchmarks.gpu --peer` measures of PyTorch and pytorch-metric-learning, on a GPU if there is one.

It imports no TensorFlow, whose builds for GPUs may need other versions of NVIDIA's libraries.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from benchmarks.loss_settings import DIM, MEMORY_ROWS, NUM_CLASSES, labels_of, rows_of

SETTINGS: dict[str, Any] = dict(
    dim=DIM,
    num_classes=NUM_CLASSES,
    memory=MEMORY_ROWS,
    device="cuda" if torch.cuda.is_available() else "cpu",
)
DEVICE = SETTINGS["device"]
NAMES = ["product", *peers.PEERS, "contrastive" + peers.MEMORY]
OUT_OF_MEMORY = torch.OutOfMemoryError
MODELS = ["convnet", *(["mobilenet_v2"] if importlib.util.find_spec("torchvision") else [])]
STEPS: dict[str, dict[str, Any]] = {
    "TF32 off": dict(tf32=False),
    "TF32": dict(),
    "TF32 off, channels last": dict(tf32=False, memory_format=torch.channels_last),
    "TF32, channels last": dict(memory_format=torch.channels_last),
}


def use_gpu(tf32: bool = False) -> None:
    """Sets the precision of products and convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def description() -> str:
    """What is measured."""
    return f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'the CPU'}"


def memory(reset: bool = False) -> tuple[float, float]:
    """Bytes of GPU memory that are held now and at the peak; NaN without a GPU."""
    if DEVICE == "cpu":
        return np.nan, np.nan
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def can(name: str, batch: int, layout: str, xla: bool) -> bool:
    """Whether that can be measured: proxies are of known classes, and cubic losses of small batches."""
    if xla or name == "product":
        return not xla
    return peers.has_peer(name, batch) and not (peers.has_proxies(name) and layout == "quarter")


def loss_call(name: str, batch: int, layout: str, xla: bool) -> Callable[[], torch.Tensor]:
    """Value and gradient of a loss; the result is the value."""
    assert not xla
    labels = labels_of(layout, batch)
    rows = torch.tensor(rows_of(labels), device=DEVICE, requires_grad=True)
    if name != "product" and peers.has_proxies(name):
        labels = labels % NUM_CLASSES
    labels = torch.tensor(labels, device=DEVICE)
    backward = _product if name == "product" else peers.backward(name, **SETTINGS)

    def call():
        rows.grad = None
        return backward(labels, rows)

    return call


def step_call(
    model: str, batch: int, size: int, *, tf32: bool = True, memory_format=torch.contiguous_format
) -> Callable[[], torch.Tensor]:
    """A training step with PNP-Dq and Adam on images that are on the device; the result is the loss."""
    use_gpu(tf32)
    torch.manual_seed(0)
    network = (_convnet() if model == "convnet" else _mobilenet()).to(DEVICE, memory_format=memory_format)
    optimizer = torch.optim.Adam(network.parameters(), 1e-5)
    backward = peers.backward("pnp", **SETTINGS)
    numbers = np.random.default_rng(0).integers(0, 255, [batch, 3, size, size], np.uint8)
    images = torch.tensor(numbers, device=DEVICE).contiguous(memory_format=memory_format)
    labels = torch.arange(batch, device=DEVICE) // 4

    def step():
        optimizer.zero_grad()
        value = backward(labels, network(images.float() / 127.5 - 1))
        optimizer.step()
        return value

    return step


def _product(labels, rows):
    """The bare similarity product and its backward; the similarities stand in for an upstream gradient."""
    del labels
    unit = torch.nn.functional.normalize(rows, dim=1)
    similarity = unit @ unit.T
    similarity.backward(similarity.detach())
    return similarity[0, 0].detach()


def _convnet(filters=64, blocks=4):
    """The network that our `convnet` is."""
    layers: list[torch.nn.Module] = []
    for channels in (3, *[filters] * (blocks - 1)):
        layers += [
            torch.nn.Conv2d(channels, filters, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(filters),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
        ]
    pooling = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return torch.nn.Sequential(*layers, *pooling, torch.nn.Linear(filters, 512))


def _mobilenet():
    import torchvision

    network = torchvision.models.mobilenet_v2(weights=None)
    network.classifier = torch.nn.Linear(1280, 512)
    return network
