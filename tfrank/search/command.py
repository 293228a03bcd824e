"""Makes an index of images that a model embeds, or brings it up to date.

    tfrank index --images=photos --index_dir=index
    tfrank index --model=runs/own_images_photos_pnp --images=photos --index_dir=index [--dim=64]
    tfrank index --images=photos --index_dir=index --storage=binary
    tfrank index duplicates --index_dir=index
    tfrank index remove --index_dir=index --ids=robin/1.jpg,robin/2.jpg
    tfrank index upgrade --index_dir=index --model=runs/better [--map=map.npz] [--noembed]
    tfrank index projector --index_dir=index

The model is the folder of a run, or a SavedModel. Without one, a new index takes EfficientNet-Lite0 with
ImageNet weights, which came with tfrank, and needs neither labels nor training: it is adapted to the images,
as --adapt adapts any model. Images are those of a folder,
with all folders inside it, of a CSV file with the column path and any others, or of records. Images that are
unchanged since the last time are not embedded again. A stopped command resumes. Readers see the old index
until the new one is complete.

upgrade gives an index another model at once: its embeddings are mapped, by a map of tfrank compat or one
that is learnt on some of the images. The images are then embedded part by part, while the index is searched.
Run again, it goes on.
"""

import csv
import functools
import shlex
from collections.abc import Sequence

from absl import flags

from tfrank.common import commands, files
from tfrank.common.checks import InputError
from tfrank.search import building, projector, upgrading
from tfrank.search.index import DUPLICATE, open_index
from tfrank.search.updating import update_from

_INDEX = flags.DEFINE_string("index_dir", None, "Folder of the index.")
_MODEL = flags.DEFINE_string(
    "model",
    "",
    "Folder of a run or of a SavedModel. Default: the model of the index, or at first EfficientNet-Lite0.",
)
_IMAGES = flags.DEFINE_string("images", "", "Folder of images or of records, or CSV file.")
_RECALL = flags.DEFINE_float(
    "target_recall",
    None,
    "Share of the nearest to find, above 0, up to 1. Default: as it was, at first 0.99.",
    lower_bound=0,
    upper_bound=1,
)
_STORAGE = flags.DEFINE_string(
    "storage",
    "",
    "What is held in memory of an embedding: float32, or a shorter code: float16, int8 or binary."
    " Default: as it was, at first float32.",
)
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python."
)
_DIM = flags.DEFINE_integer(
    "dim", 0, "First dimensions of the model's embeddings to keep; 0: all.", lower_bound=0
)
_ADAPT = flags.DEFINE_bool(
    "adapt", False, "Adapt a given model to the images, without labels, as EfficientNet-Lite0 always is."
)
_SIMILARITY = flags.DEFINE_float(
    "min_similarity",
    None,
    "Least cosine of duplicates, -1 to 1, by the embeddings before the model was adapted. Default: 0.97.",
)
_OUTPUT = flags.DEFINE_string(
    "output_dir",
    "",
    "Where the files for TensorBoard's projector go. Default: the folder projector in the index.",
)
_IDS = flags.DEFINE_list(
    "ids", [], "Ids of the images to remove. One with a comma stands in quotes: '\"Paris, France/1.jpg\"'."
)
_MAP = flags.DEFINE_string(
    "map",
    "",
    "Map of tfrank compat, or identity for a model that shares the space of the index's. Default: a map is"
    " learnt on images of the index.",
)
_EMBED = flags.DEFINE_bool("embed", True, "Embed the images of an upgraded index by the new model.")


def main(argv: Sequence[str]) -> None:
    """Does what the first word asks for; without one, updates the index."""
    action = argv[1] if argv[1:] else "update"
    actions = {
        "update": _update,
        "duplicates": _duplicates,
        "remove": _remove,
        "projector": _projector,
        "upgrade": _upgrade,
    }
    if action not in actions or argv[2:]:
        raise InputError(f"Unknown command {' '.join(argv[1:])!r}. Give one of {', '.join(actions)}.")
    if not _INDEX.value:
        raise InputError("Give the folder of the index: --index_dir=index")
    taken = ("index_dir", *_TAKEN[action])
    commands.check_flags(main.__module__, f"tfrank index {action}".removesuffix(" update"), taken)
    actions[action]()


# The flags that an action takes, beside that of the index.
_TAKEN = {
    "update": ("model", "images", "target_recall", "storage", "trust_model", "dim", "adapt"),
    "duplicates": ("min_similarity", "trust_model"),
    "remove": ("ids", "target_recall"),
    "projector": ("output_dir", "trust_model"),
    "upgrade": ("model", "map", "embed", "target_recall", "trust_model"),
}


def _update():
    if not _IMAGES.value:
        raise InputError("Give the images: --images=FOLDER or --images=FILE.csv")
    options = {"model": _MODEL.value, "trusted": _TRUST.value, "target_recall": _RECALL.value}
    options |= {"storage": _STORAGE.value, "dim": _DIM.value, "adapted": _ADAPT.value}
    update_from(_INDEX.value, _IMAGES.value, **options)
    print(f"To search: tfrank serve --index_dir={shlex.quote(_INDEX.value)}")


def _duplicates():
    index = open_index(_INDEX.value, trusted=_TRUST.value)
    least = DUPLICATE if _SIMILARITY.value is None else _SIMILARITY.value
    groups = index.duplicates(least)
    path = index.files.path("duplicates.csv")
    with files.atomic_write(path, "w") as file:
        rows = [(number, image) for number, group in enumerate(groups, 1) for image in group]
        csv.writer(file).writerows([("group", "id"), *rows])
    for group in groups[:10]:
        print(", ".join(group[:5]) + (f" and {len(group) - 5:,} more" if len(group) > 5 else ""))
    print(f"{len(groups):,} groups of images with a similarity of at least {least:g}: {path}")


def _remove():
    version = building.remove(_INDEX.value, _IDS.value, target_recall=_RECALL.value)
    print(f"Version {version.number} of {_INDEX.value} has {version.rows:,} images.")
    print("A removed image comes back with the next tfrank index --images, unless its file goes too.")


def _projector():
    index = open_index(_INDEX.value, trusted=_TRUST.value)
    folder = _OUTPUT.value or index.files.path("projector")
    count = projector.write(index, folder)
    print(f"{count:,} of {len(index):,} images. Look at them: tensorboard --logdir={shlex.quote(folder)}")


def _upgrade():
    options = {"trusted": _TRUST.value, "target_recall": _RECALL.value}
    upgrading.upgrade(_INDEX.value, _MODEL.value, _MAP.value, embed=_EMBED.value, **options)


def command() -> None:
    """The command tfrank index."""
    parse = functools.partial(commands.parse_with_help, main.__module__, words=True)
    commands.run(main, parse=parse)


if __name__ == "__main__":
    command()
