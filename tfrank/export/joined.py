"""Two SavedModels as one: a network, and the head that was trained on its embeddings."""

import json
import os

import tensorflow as tf

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.export.saved_model import CONTENTS, SIGNATURE, exported_contents, loading


def join(network: str, head: str, folder: str, *, trusted: bool = False) -> str:
    """Writes the SavedModel that embeds by a network and then by a head; returns its folder.

    It has the signatures of the network, and states the matches of the head.

    Args:
        network: folder of a SavedModel with embeddings, such as `export_saved_model` writes it.
        head: folder of the SavedModel of a head, whose `serving_default` takes `vectors`.
        folder: folder of the joined model; replaced if it exists.
        trusted: whether both may run any operation; see `saved_model.loading`.

    Raises:
        InputError: a folder is not such a SavedModel, or the head was trained on other dimensions.
    """
    target = os.path.realpath(folder)
    for path in map(os.path.realpath, (network, head)):
        if os.path.commonpath([path, target]) == target:
            raise InputError(f"{folder} would replace {path}, which it is made of. Choose another folder.")
    joined = tf.Module()
    for name, path in (("network", network), ("head", head)):
        with loading(path, trusted=trusted) as readable:
            setattr(joined, name, tf.saved_model.load(readable))
    with loading(network, trusted=True):
        signatures = {
            name: joined.network.signatures[name]
            for name in (SIGNATURE, "encoded")
            if name in joined.network.signatures
        }
        (dim,) = {signature.structured_outputs["embedding"].shape[1] for signature in signatures.values()}
    with loading(head, trusted=True):
        head_function = joined.head.signatures[SIGNATURE]
        takes = head_function.structured_input_signature[1]["vectors"].shape[1]
    if takes != dim:
        raise InputError(
            f"{head} takes vectors of {takes} dimensions, and {network} gives {dim}. Give the network whose"
            " embeddings the head was trained on."
        )
    matches = exported_contents(head).get("matches")
    contents = exported_contents(network) | {"matches": matches}
    with files.atomic_folder(folder) as temporary:
        tf.saved_model.save(
            joined,
            temporary,
            {name: _after(signature, head_function) for name, signature in signatures.items()},
        )
        with open(os.path.join(temporary, CONTENTS), "w") as file:
            json.dump(contents, file)
    return folder


def _after(signature, head):
    """The function of a signature, followed by the head."""
    ((name, spec),) = signature.structured_input_signature[1].items()

    @tf.function(input_signature=[spec], autograph=False)
    def embed(inputs):
        return {"embedding": head(vectors=signature(**{name: inputs})["embedding"])["embedding"]}

    return embed
