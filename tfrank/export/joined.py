"""SavedModels made of others: a network with a head for its embeddings, or cut short."""

import json
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.export.fingerprint import fingerprint
from tfrank.export.saved_model import CONTENTS, SIGNATURE, exported_contents, loading, trained_classes


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
    joined, dim = _opened(folder, network, head, trusted=trusted)
    with loading(head, trusted=True):
        head_function = joined.parts[1].signatures[SIGNATURE]
        takes = head_function.structured_input_signature[1]["vectors"].shape[1]
    if takes != dim:
        raise InputError(
            f"{head} takes vectors of {takes} dimensions, and {network} gives {dim}. Give the network whose"
            " embeddings the head was trained on."
        )
    of_network, of_head = exported_contents(network), exported_contents(head)
    trained = sorted({*trained_classes(of_network), *trained_classes(of_head)})
    stated = of_network | {"matches": of_head.get("matches"), "trained": trained}
    return _write(joined, head_function, stated, folder)


def shorten(saved_model: str, dim: int, folder: str, *, trusted: bool = False) -> str:
    """Writes the SavedModel of the first `dim` dimensions of embeddings, of unit norm; returns its folder.

    It has the signatures of the given one. It states matches if that model was trained to be cut to `dim`.

    Args:
        saved_model: folder of a SavedModel such as `export_saved_model` writes it.
        dim: from 1 to less than the dimensions of its embeddings.
        folder: folder of the shorter model; replaced if it exists.
        trusted: whether the model may run any operation; see `saved_model.loading`.

    Raises:
        InputError: the folder is not such a SavedModel, or `dim` is not in that range.
    """
    shorter, whole = _opened(folder, saved_model, trusted=trusted)
    if checks.integer("dim", dim, at_least=1) >= whole:
        raise checks.invalid("dim", f"less than the {whole} dimensions of {saved_model}", dim)
    contents = exported_contents(saved_model)
    matches = contents.get("matches") or {}
    of_dim = matches.get("dims", {}).get(str(dim))

    def first(vectors):
        return {"embedding": l2_normalize(vectors[:, :dim])}

    stated = {"matches": of_dim and matches | of_dim, "trained": trained_classes(contents)}
    return _write(shorter, first, contents | stated, folder)


def adapted(
    saved_model: str,
    layer: Callable[[tf.Tensor], tf.Tensor],
    folder: str,
    *,
    trusted: bool = False,
) -> str:
    """Writes the SavedModel that embeds as another, followed by a layer; returns its folder.

    It has the signatures of the given one. It states no matches, since similarities are others, what it was
    trained on, what it was adapted from, and that it is not to be adapted again.

    Args:
        saved_model: folder of a SavedModel such as `export_saved_model` writes it.
        layer: maps `[batch, dim]` embeddings to `[batch, out]` of unit norm in TensorFlow, without variables.
        folder: folder of the new model; replaced if it exists.
        trusted: whether the model may run any operation; see `saved_model.loading`.

    Raises:
        InputError: the folder is not such a SavedModel.
    """
    module, _ = _opened(folder, saved_model, trusted=trusted)

    def head(vectors):
        return {"embedding": layer(vectors)}

    contents = exported_contents(saved_model)
    stated = {"matches": None, "trained": trained_classes(contents), "origin": origin_of(saved_model)}
    return _write(module, head, contents | stated | {"adapts": False}, folder)


def origin_of(saved_model: str) -> str:
    """Returns the fingerprint of the model that one was adapted or learnt from, or its own."""
    return exported_contents(saved_model).get("origin") or fingerprint(saved_model)


def _opened(folder, *models, trusted):
    """The loaded SavedModels, as `parts` of a module, and the dimensions of the embeddings of the first.

    Raises InputError if `folder`, where their successor goes, has one of them.
    """
    target, module = os.path.realpath(folder), tf.Module()
    for path in map(os.path.realpath, models):
        if os.path.commonpath([path, target]) == target:
            raise InputError(f"{folder} would replace {path}, which it is made of. Choose another folder.")
    module.parts = []
    for path in models:
        with loading(path, trusted=trusted) as readable:
            module.parts.append(tf.saved_model.load(readable))
    with loading(models[0], trusted=True):
        outputs = (signature.structured_outputs for signature in _signatures(module).values())
        (dim,) = {output["embedding"].shape[1] for output in outputs}
    return module, dim


def _signatures(module):
    """The signatures of the first part that embed, by name."""
    found = module.parts[0].signatures
    return {name: found[name] for name in (SIGNATURE, "encoded") if name in found}


def _write(module, head, contents: dict[str, Any], folder: str) -> str:
    """Writes the first part, followed by the head, and what it states; returns the folder."""
    signatures = {name: _after(signature, head) for name, signature in _signatures(module).items()}
    files.make_folder(os.path.dirname(os.path.abspath(folder)))
    with files.atomic_folder(folder) as temporary:
        tf.saved_model.save(module, temporary, signatures)
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
