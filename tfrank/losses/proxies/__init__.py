"""Losses with learned proxies of classes.

A row in `PROXY_LOSSES` makes a loss available by name and includes it in the tests.
"""

from tfrank.losses.proxies.arc_face import ArcFaceLoss
from tfrank.losses.proxies.cos_face import CosFaceLoss
from tfrank.losses.proxies.layer import Proxies
from tfrank.losses.proxies.normalized_softmax import NormalizedSoftmaxLoss
from tfrank.losses.proxies.proxy_anchor import ProxyAnchorLoss
from tfrank.losses.proxies.proxy_loss import ProxyLoss
from tfrank.losses.proxies.proxy_nca import ProxyNCALoss
from tfrank.losses.proxies.proxy_nca_pp import ProxyNCAPlusPlusLoss
from tfrank.losses.proxies.sampled import SampledProxyLoss
from tfrank.losses.proxies.soft_triple import SoftTripleLoss

PROXY_LOSSES: dict[str, type[ProxyLoss]] = {
    "proxy_nca": ProxyNCALoss,
    "proxy_nca_pp": ProxyNCAPlusPlusLoss,
    "soft_triple": SoftTripleLoss,
    "normalized_softmax": NormalizedSoftmaxLoss,
    "arc_face": ArcFaceLoss,
    "cos_face": CosFaceLoss,
    "proxy_anchor": ProxyAnchorLoss,
}

__all__ = [
    "PROXY_LOSSES",
    "ArcFaceLoss",
    "CosFaceLoss",
    "NormalizedSoftmaxLoss",
    "Proxies",
    "ProxyAnchorLoss",
    "ProxyLoss",
    "ProxyNCALoss",
    "ProxyNCAPlusPlusLoss",
    "SampledProxyLoss",
    "SoftTripleLoss",
]
