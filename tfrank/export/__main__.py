"""Writes a SavedModel in other formats, each checked against it, and a model card.

    tfrank export --model=runs/letters_pnp --formats=tflite,onnx

The formats are tflite (TensorFlow Lite), tflite_int8 (the same with weights of eight bits, a quarter of the
size) and onnx (extra `onnx`). They are compared with the SavedModel on the images of a folder, --images, or
else on random ones.

    tfrank export --model=runs/own_embeddings_features_pnp --after=runs/own_images_photos_pnp/saved_model

joins the head of a run on embeddings with the SavedModel that computed them, and exports both as one model.

    tfrank export --model=runs/letters_pnp --dim=64

exports the first 64 dimensions of the embeddings, as a SavedModel too, for a model that was trained with
--config.train.matryoshka.
"""

import os
from collections.abc import Sequence

from absl import flags

from tfrank.common import checks, commands, files
from tfrank.common.checks import InputError
from tfrank.export import formats, joined, model_card
from tfrank.export.saved_model import saved_model_of

_MODEL = flags.DEFINE_string("model", None, "Folder of a run, or of a SavedModel.")
_FORMATS = flags.DEFINE_list("formats", ["tflite"], f"Some of {', '.join(formats.FORMATS)}.")
_IMAGES = flags.DEFINE_string("images", "", "Folder of image files to compare the models on.")
_OUTPUT = flags.DEFINE_string("output_dir", "", "Where to. Default: beside the SavedModel.")
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python."
)
_AFTER = flags.DEFINE_string(
    "after", "", "SavedModel whose embeddings the model was trained on: writes both as `joined_model`."
)
_DIM = flags.DEFINE_integer(
    "dim", 0, "First dimensions to keep; 0: all. Goes to the folder dim_<dim> of the run.", lower_bound=0
)
_LICENSE = flags.DEFINE_string("license", "", "Licence of the model, for its card.")


def main(_: Sequence[str]) -> None:
    """Writes the files and prints what they are."""
    if not _MODEL.value:
        raise InputError("Give the model: --model=FOLDER of a run or of a SavedModel")
    saved_model = saved_model_of(_MODEL.value.rstrip("/"))
    run = os.path.dirname(os.path.abspath(saved_model))
    folder = _OUTPUT.value or (os.path.join(run, f"dim_{_DIM.value}") if _DIM.value else run)
    trusted, images = _TRUST.value, None
    if _AFTER.value:
        path = os.path.join(files.make_folder(folder), "joined_model")
        saved_model = joined.join(_AFTER.value, saved_model, path, trusted=trusted)
        print(f"{saved_model}: a SavedModel of both", flush=True)
    if _DIM.value:
        path = os.path.join(folder, "saved_model")
        with checks.called({"dim": "--dim"}):
            saved_model = joined.shorten(saved_model, _DIM.value, path, trusted=trusted)
        print(f"{saved_model}: a SavedModel of the first {_DIM.value} dimensions", flush=True)
    if _IMAGES.value:
        images = formats.images_of(_IMAGES.value, formats.image_size(saved_model, trusted=trusted))
    missed = []
    for done in formats.write_all(saved_model, folder, _FORMATS.value, images, trusted=trusted):
        if isinstance(done, formats.NotWritten):
            missed.append(str(done))
            continue
        print(
            f"{done.path}: {done.megabytes:.1f} MB; cosine to the SavedModel's embeddings"
            f" {done.cosine:.5f} on average, {done.least:.5f} at least.",
            flush=True,
        )
    if os.path.exists(os.path.join(run, "metrics.json")):
        card = model_card.write(run, folder, license_name=_LICENSE.value, dim=_DIM.value, after=_AFTER.value)
        print(f"{card}: what the model is and does")
    if missed:
        raise InputError(" ".join(missed))


def command() -> None:
    """The command tfrank export."""
    commands.run(main)


if __name__ == "__main__":
    command()
