"""The same losses in pytorch-metric-learning (extra `bench`), at the same settings."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Those that hold tensors of batch^3 numbers, or take such time, are not tried on batches above this.
LARGEST_CUBIC = 512


class Peer(NamedTuple):
    """What a loss of ours is called there.

    Attributes:
        loss: its class, and what makes it, at our defaults.
        miner: what picks pairs or triplets for it, if anything.
        cubic: whether its memory or time is.
    """

    loss: tuple[str, dict[str, Any]]
    miner: tuple[str, dict[str, Any]] | None = None
    cubic: bool = False


# Of distances: between unit vectors, squared for triplets as in ours.
SQUARED = {"squared": True}

PEERS = {
    "pnp": Peer(("PNPLoss", {"variant": "Dq", "alpha": 4, "b": 4, "anneal": 0.01}), cubic=True),
    "smooth_ap": Peer(("SmoothAPLoss", {"temperature": 0.01}), cubic=True),
    # It has no mAP_Q; its FastAP is the nearest, with as many bins.
    "map_q": Peer(("FastAPLoss", {"num_bins": 19})),
    "fast_ap": Peer(("FastAPLoss", {"num_bins": 10})),
    "rll": Peer(("RankedListLoss", {"margin": 0.4, "Tn": 10, "alpha": 1.2})),
    # All semi-hard negatives of a pair there, the nearest one here.
    "triplet": Peer(
        ("TripletMarginLoss", {"margin": 0.2} | SQUARED),
        ("TripletMarginMiner", {"margin": 0.2, "type_of_triplets": "semihard"} | SQUARED),
    ),
    "triplet-hard": Peer(("TripletMarginLoss", {"margin": 0.2} | SQUARED), ("BatchHardMiner", SQUARED)),
    "triplet-all": Peer(("TripletMarginLoss", {"margin": 0.2} | SQUARED)),
    # Its hinges are not squared.
    "contrastive": Peer(("ContrastiveLoss", {"pos_margin": 0, "neg_margin": 1})),
    # Only the first two rows of each class.
    "n_pairs": Peer(("NPairsLoss", {})),
    "lifted_structure": Peer(("LiftedStructureLoss", {"neg_margin": 1, "pos_margin": 0}), cubic=True),
    "margin": Peer(
        ("MarginLoss", {"margin": 0.2, "beta": 1.2}),
        ("DistanceWeightedMiner", {"cutoff": 0.5, "nonzero_loss_cutoff": 1.4}),
    ),
    "multi_similarity": Peer(
        ("MultiSimilarityLoss", {"alpha": 2, "beta": 50, "base": 0.5}),
        ("MultiSimilarityMiner", {"epsilon": 0.1}),
    ),
    "sup_con": Peer(("SupConLoss", {"temperature": 0.1})),
    "circle": Peer(("CircleLoss", {"m": 0.4, "gamma": 80})),
    "histogram": Peer(("HistogramLoss", {"n_bins": 200})),
    # With the positive among the proxies it is compared with, as in ProxyNCA++.
    "proxy_nca": Peer(("ProxyNCALoss", {"softmax_scale": 9})),
    "proxy_nca_pp": Peer(("ProxyNCALoss", {"softmax_scale": 9})),
    "soft_triple": Peer(
        ("SoftTripleLoss", {"centers_per_class": 10, "la": 20, "gamma": 0.1, "margin": 0.01})
    ),
    "normalized_softmax": Peer(("NormalizedSoftmaxLoss", {"temperature": 0.05})),
    "arc_face": Peer(("ArcFaceLoss", {"margin": np.degrees(0.5), "scale": 64})),
    "cos_face": Peer(("CosFaceLoss", {"margin": 0.35, "scale": 64})),
    "proxy_anchor": Peer(("ProxyAnchorLoss", {"margin": 0.1, "alpha": 32})),
}
WITH_PROXIES = (
    "ProxyNCALoss",
    "SoftTripleLoss",
    "NormalizedSoftmaxLoss",
    "ArcFaceLoss",
    "CosFaceLoss",
    "ProxyAnchorLoss",
)
MEMORY = "-memory"


def has_peer(name: str, batch: int) -> bool:
    """Whether that loss exists there and can be run on a batch of that size."""
    peer = PEERS.get(name.removesuffix(MEMORY))
    return peer is not None and (batch <= LARGEST_CUBIC or not peer.cubic)


def has_proxies(name: str) -> bool:
    """Whether that loss, which exists there, has proxies."""
    return PEERS[name.removesuffix(MEMORY)].loss[0] in WITH_PROXIES


def backward(
    name: str, *, dim: int, num_classes: int, memory: int, device: str = "cpu"
) -> Callable[[Any, Any], Any]:
    """Forward and backward of a peer: from tensors of labels and embeddings to the value.

    The gradient goes to what the embeddings were computed from. That of proxies is computed and removed.

    Args:
        name: of ours; with "-memory" behind it, with a full memory of past embeddings.
        dim: of the embeddings.
        num_classes: of losses with proxies.
        memory: rows of a memory.
        device: of labels and embeddings.
    """
    import torch
    from pytorch_metric_learning import distances, losses, miners

    def build(module, made_of):
        class_name, settings = made_of
        settings = dict(settings)
        if settings.pop("squared", False):
            settings["distance"] = distances.LpDistance(power=2)
        if class_name in WITH_PROXIES:
            settings |= {"num_classes": num_classes, "embedding_size": dim}
        return getattr(module, class_name)(**settings)

    described = PEERS[name.removesuffix(MEMORY)]
    loss = build(losses, described.loss).to(device)
    miner = described.miner and build(miners, described.miner)
    if name.endswith(MEMORY):
        loss = losses.CrossBatchMemory(loss, embedding_size=dim, memory_size=memory)
        loss.embedding_memory = torch.nn.functional.normalize(torch.randn(memory, dim, device=device))
        loss.label_memory = torch.arange(memory, device=device) // 4
        loss.has_been_filled = True

    def value(labels, rows):
        result = loss(rows, labels, *([miner(rows, labels)] if miner else []))
        result.backward()
        loss.zero_grad()
        return result.detach()

    return value


def peer(name: str, **settings: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Forward and backward of a peer on the CPU, from arrays to the gradient; see `backward`."""
    import torch

    run = backward(name, **settings)

    def gradient(labels, embeddings):
        rows = torch.tensor(np.asarray(embeddings), requires_grad=True)
        run(torch.tensor(np.asarray(labels)), rows)
        return rows.grad

    return gradient
