"""Learns a map from the embeddings of an old model to those of a new one, on photos without labels.

    tfrank compat --old=index --new=runs/better [--output=map.npz]
    tfrank compat --old=runs/before --new=runs/better --images=photos
    tfrank index upgrade --index_dir=index --model=runs/better --map=map.npz

Each of both is the folder of a run, a SavedModel, or an index, whose embeddings are not computed again.
Without --images, its photos are taken, or those that two indexes have in common. A fifth of the photos is
held out, and says what a search of mapped embeddings keeps: of the nearest photos, and if they have labels,
of Recall@1 and mAP.
"""

import os
import shlex
from collections.abc import Sequence

from absl import flags

from tfrank.common import commands
from tfrank.common.checks import InputError
from tfrank.evaluation.embedding_maps import save_map
from tfrank.search.maps import check_output, learn_from
from tfrank.search.pairs import MOST, model_folder

_OLD = flags.DEFINE_string("old", "", "Old model: folder of a run, of a SavedModel or of an index.")
_NEW = flags.DEFINE_string("new", "", "New model: folder of a run, of a SavedModel or of an index.")
_IMAGES = flags.DEFINE_string(
    "images", "", "Folder of images or of records, or CSV file. Default: the photos of the index."
)
_MOST = flags.DEFINE_integer(
    "max_images", MOST, "Photos to learn on at most, evenly spread.", lower_bound=100
)
_HIDDEN = flags.DEFINE_integer(
    "hidden", 0, "Units of a hidden layer that is added to the linear map; 0: none.", lower_bound=0
)
_OUTPUT = flags.DEFINE_string("output", "map.npz", "File of the map.")
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the models even if they may read and write files or run Python."
)


def main(_: Sequence[str]) -> None:
    """Learns the map, writes it and says how to use it."""
    if not (_OLD.value and _NEW.value):
        raise InputError("Give both models: --old=FOLDER --new=FOLDER, each a run, a SavedModel or an index")
    check_output(_OUTPUT.value)
    options = {"most": _MOST.value, "hidden": _HIDDEN.value, "trusted": _TRUST.value}
    learnt = learn_from(_OLD.value, _NEW.value, _IMAGES.value, **options)
    save_map(_OUTPUT.value, learnt)
    print(f"{_OUTPUT.value}: the map, {os.path.getsize(_OUTPUT.value) / 1e6:.1f} MB")
    model = shlex.quote(model_folder(_NEW.value))
    print(
        f"To upgrade an index: tfrank index upgrade --index_dir=INDEX --model={model}"
        f" --map={shlex.quote(_OUTPUT.value)}"
    )


def command() -> None:
    """The command tfrank compat."""
    commands.run(main)


if __name__ == "__main__":
    command()
