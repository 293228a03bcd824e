"""Losses with learned proxies of classes. One row in `PROXY_LOSSES` makes a loss reachable, and tested."""

from collections.abc import Iterable
from typing import Any

from tfrank import checks
from tfrank.losses.proxies.arc_face import ArcFaceLoss
from tfrank.losses.proxies.layer import Proxies
from tfrank.losses.proxies.normalized_softmax import NormalizedSoftmaxLoss
from tfrank.losses.proxies.proxy_loss import ProxyLoss
from tfrank.losses.proxies.proxy_nca import ProxyNCALoss
from tfrank.losses.proxies.proxy_nca_pp import ProxyNCAPlusPlusLoss
from tfrank.losses.proxies.soft_triple import SoftTripleLoss

PROXY_LOSSES: dict[str, type[ProxyLoss]] = {
    "proxy_nca": ProxyNCALoss,
    "proxy_nca_pp": ProxyNCAPlusPlusLoss,
    "soft_triple": SoftTripleLoss,
    "normalized_softmax": NormalizedSoftmaxLoss,
    "arc_face": ArcFaceLoss,
}


def get(name: str, labels: Iterable[int], **hyper_parameters: Any) -> ProxyLoss:
    """The loss of that name, for the labels of training.

    >>> get("soft_triple", labels=[3, 7, 3], proxies_per_class=4).proxies().num_proxies
    8
    """
    return PROXY_LOSSES[checks.one_of("loss", name, PROXY_LOSSES)](labels, **hyper_parameters)


__all__ = [
    "PROXY_LOSSES",
    "ArcFaceLoss",
    "NormalizedSoftmaxLoss",
    "Proxies",
    "ProxyLoss",
    "ProxyNCALoss",
    "ProxyNCAPlusPlusLoss",
    "SoftTripleLoss",
    "get",
]
