"""Ranking losses. One row in `LOSSES` is what makes a loss reachable by name, and tested."""

from typing import Any

from tfrank import checks
from tfrank.losses.pnp import PNPLoss
from tfrank.losses.ranking_loss import RankingLoss
from tfrank.losses.smooth_ap import SmoothAPLoss

LOSSES: dict[str, type[RankingLoss]] = {
    "pnp": PNPLoss,
    "smooth_ap": SmoothAPLoss,
}


def get(name: str, **hyper_parameters: Any) -> RankingLoss:
    """The loss of that name.

    >>> get("smooth_ap", temperature=0.05).get_config()["temperature"]
    0.05
    """
    return LOSSES[checks.one_of("loss", name, LOSSES)](**hyper_parameters)


__all__ = ["LOSSES", "PNPLoss", "RankingLoss", "SmoothAPLoss", "get"]
