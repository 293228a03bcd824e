"""The same losses in pytorch-metric-learning (extra `bench`), on CPU, at the same settings."""

from collections.abc import Callable

import numpy as np

# Those that hold tensors of batch^3 numbers are not tried on batches above this.
LARGEST_CUBIC = 512

# What a name of ours is called there, with our defaults; and whether its memory is cubic.
PEERS = {
    "pnp": ("PNPLoss", {"variant": "Dq", "alpha": 4, "b": 4, "anneal": 0.01}, True),
    "smooth_ap": ("SmoothAPLoss", {"temperature": 0.01}, True),
    # It has no mAP_Q; its FastAP is the nearest, with as many bins.
    "map_q": ("FastAPLoss", {"num_bins": 19}, False),
    "fast_ap": ("FastAPLoss", {"num_bins": 10}, False),
    "rll": ("RankedListLoss", {"margin": 0.4, "Tn": 10, "alpha": 1.2}, False),
}


def has_peer(name: str, batch: int) -> bool:
    """Whether that loss exists there and can be run on a batch of that size."""
    return name in PEERS and (batch <= LARGEST_CUBIC or not PEERS[name][2])


def peer(name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Forward and backward of a peer: from labels and embeddings to the gradient."""
    import torch
    from pytorch_metric_learning import losses

    class_name, settings, _ = PEERS[name]
    loss = getattr(losses, class_name)(**settings)

    def gradient(labels, embeddings):
        rows = torch.tensor(np.asarray(embeddings), requires_grad=True)
        loss(rows, torch.tensor(np.asarray(labels))).backward()
        return rows.grad

    return gradient
