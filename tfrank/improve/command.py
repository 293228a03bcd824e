"""Lets an index learn from its labels: those that people gave on its page, and those of folders or a table.

    tfrank improve --index_dir=index
    tfrank improve --index_dir=index --back

A head in closed form is learnt on EfficientNet-Lite0, whose ImageNet weights came with tfrank. Before it is
used, each group is searched for by a head that was learnt from other groups. If that is not better than the
model of the index, nothing changes. If it is, all photos are embedded by a head that was learnt from all
groups, and the index switches to them at once; readers see the old version until then. Stopped at any moment,
the index is as it was, and the same command goes on. `--back` switches to the model before.
"""

from collections.abc import Sequence

from absl import flags

from tfrank.common import commands
from tfrank.common.checks import InputError
from tfrank.improve.improvement import back, improve

_INDEX = flags.DEFINE_string("index_dir", None, "Folder of the index.")
_BACK = flags.DEFINE_bool("back", False, "Switch to the model that the index had before.")
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python."
)


def main(_: Sequence[str]) -> None:
    """Improves an index, or goes back to its model before."""
    if not _INDEX.value:
        raise InputError("Give the folder of the index: --index_dir=index")
    if _BACK.value:
        back(_INDEX.value, trusted=_TRUST.value)
    else:
        improve(_INDEX.value)


def command() -> None:
    """The command tfrank improve."""
    commands.run(main)


if __name__ == "__main__":
    command()
