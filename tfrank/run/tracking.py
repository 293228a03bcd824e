"""The trackers that a config names."""

from collections.abc import Sequence

from tfrank.configs.default import Config
from tfrank.configs.fields import flatten, tree
from tfrank.training.trackers import Tracker, build_trackers


def trackers_of(config: Config, workdir: str, *, chief: bool) -> Sequence[Tracker]:
    """Returns what follows a run in a folder; nothing on a machine that is not the chief."""
    return build_trackers(config.train.trackers, workdir, flatten(tree(config))) if chief else ()
