"""The settings of a search by ScaNN."""

import os
from typing import Any, NamedTuple

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import scann_files

METHODS = ("brute_force", "hashing", "tree")


class Depth(NamedTuple):
    """How deep the index looks for k neighbours.

    Attributes:
        k: the number of neighbours.
        leaves_to_search: number of leaves searched for a query; 0 without a tree.
        reorder: number of candidates compared in float32.
        recall: the measured share of the exact k nearest that were found, for a sample of queries.
    """

    k: int
    leaves_to_search: int
    reorder: int
    recall: float


class Settings(NamedTuple):
    """The search settings of an index.

    Attributes:
        method: "brute_force", "hashing" (asymmetric hashing, then reordering) or "tree" (the same within
            the leaves that are nearest to a query).
        leaves: number of leaves of the tree; 0 without a tree.
        depths: by ascending k, how deep the index looks for up to so many neighbours. It searches exactly
            for more. None for brute force.
    """

    method: str
    leaves: int
    depths: tuple[Depth, ...] = ()

    @property
    def recall(self) -> float:
        """The least measured recall of the depths; 1 for brute force."""
        return min((depth.recall for depth in self.depths), default=1.0)


def checked_settings(folder: str, fields: dict[str, Any]) -> Settings:
    """Returns the settings of a folder; raises InputError if they are invalid."""
    try:
        if "k" in fields:  # Written before there were several depths.
            only = [fields.pop(name) for name in Depth._fields]
            fields["depths"] = [] if fields.get("method") == "brute_force" else [only]
        depths = tuple(Depth(*depth) for depth in fields.pop("depths"))
        settings = Settings(**fields, depths=depths)
        checks.one_of("method", settings.method, METHODS)
        checks.integer("leaves", settings.leaves, at_least=0)
        for depth in depths:
            for name, least in (("k", 1), ("leaves_to_search", 0), ("reorder", 0)):
                checks.integer(name, getattr(depth, name), at_least=least)
            checks.number("recall", depth.recall, at_least=0, at_most=1)
    except (TypeError, KeyError, InputError) as error:
        path = os.path.join(folder, scann_files.MANIFEST)
        raise InputError(f"The settings in {path} are damaged ({error}). Build and save it again.") from None
    return settings
