"""Vision transformers of keras-hub (extra `hub`): ViT, DeiT, Swin, DINO, image towers of CLIP and SigLIP.

They are built from their published sizes. Weights are read from a folder, without network: a Keras preset, or
a Hugging Face model (config.json and model.safetensors).
"""

import contextlib
import importlib
import itertools
import math
import os
import re
import tempfile

import keras
import numpy as np
from keras import ops

from tfrank.common import checks, json_files
from tfrank.common.checks import InputError
from tfrank.models import safetensors_files
from tfrank.models.hub_sizes import FAMILIES, PREFIX, SIZES, TOWERS
from tfrank.models.vision_towers import read_tower

MISSING = "Backbones of keras-hub need an extra: pip install 'tfrank[hub]'"
# Parts of the names of weights that are tables of the positions of patches.
_POSITIONS = ("position_embedding/embeddings", "patching_and_embedding/position_embedding")


def hub_network(size: str, *, image_size: int | None) -> keras.Model:
    """A vision transformer with random weights.

    Args:
        size: a key of `SIZES`.
        image_size: the side of an image in pixels, a multiple of the patch.

    Returns:
        A model of that name from preprocessed images, `[batch, image_size, image_size, 3]`, to the map of the
        patches, `[batch, height, width, dim]`, and the class token, `[batch, dim]`, if the family has one.
        SigLIP's is the patches pooled by attention.

    Raises:
        InputError: keras-hub is not installed, or the image size does not fit.
    """
    name, arguments = SIZES[size]
    patch = arguments.get("patch_size", 4)
    if image_size is None:
        raise InputError(f"{PREFIX}{size} takes images of one size only. Leave out full_size and scales.")
    if image_size % patch:
        fitting = max(1, round(image_size / patch)) * patch
        raise checks.invalid("image_size", f"a multiple of the patch, {patch}, such as {fitting}", image_size)
    shape = (image_size, image_size, 3)
    fails = f"{PREFIX}{size} cannot be built for images of side {image_size}"
    # The scope tells the layer "embedding" of some from the head of a model.
    with _plain_errors(fails), keras.name_scope(size):
        network = _class_of(name)(image_shape=shape, **arguments)
        for weight in filter(_numbers_positions, network.weights):
            # CLIP's are all 0 until weights are loaded.
            weight.assign(np.arange(weight.shape[1])[None])
        return _with_map(network, name, size, arguments)


def _numbers_positions(weight) -> bool:
    return weight.path.endswith("position_ids")


def _class_of(family):
    """The class that builds the network of a family; for CLIP and SigLIP that of the image tower."""
    preset_class = _preset_class(family)
    if family not in TOWERS:
        return preset_class
    module = importlib.import_module(f"keras_hub.src.models.{family}.{family}_vision_encoder")
    return getattr(module, preset_class.__name__.replace("Backbone", "VisionEncoder"))


def _preset_class(family):
    """The class that reads the presets of a family."""
    try:
        return getattr(importlib.import_module("keras_hub").models, FAMILIES[family].backbone)
    except ImportError as error:
        raise InputError(f"{MISSING} ({error})") from None


@contextlib.contextmanager
def _plain_errors(what: str):
    """Turns what keras-hub raises into an InputError of one line."""
    try:
        yield
    except InputError:
        raise
    # It raises many kinds: of safetensors, h5py and Keras.
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{what} ({reason or type(error).__name__}).") from None


def _with_map(hub, family, size, arguments):
    """The network with its tokens as a map of the patches, and the class token."""
    images = keras.Input(hub.inputs[0].shape[1:], name="preprocessed")
    pools = FAMILIES[family].pools
    if pools:
        hub = keras.Model(hub.input, [hub.get_layer("post_layer_norm").output, hub.output], name=hub.name)
    # The input has another name in each family.
    tokens = hub({hub.inputs[0].name: images} if isinstance(hub.input, dict) else images)
    tokens, *pooled = tokens if pools else [tokens]
    first = FAMILIES[family].prefix_tokens + arguments.get("num_register_tokens", 0)
    patches = tokens[:, first:]
    side = round(patches.shape[1] ** 0.5)
    feature_map = ops.reshape(patches, [-1, side, side, tokens.shape[-1]])
    outputs = [feature_map, *pooled, *([tokens[:, 0]] if first else [])]
    return keras.Model(images, outputs, name=size)


def load_hub_weights(network: keras.Model, folder: str) -> None:
    """Loads the weights of a folder into the result of `hub_network`; all of them or none.

    If the weights are of another image size, the embeddings of the positions are interpolated as PyTorch's
    bicubic interpolation does, which DeiT's authors use.

    Args:
        network: the network.
        folder: a Keras preset, or a Hugging Face model.

    Raises:
        InputError: the folder has no such model, it is of another family or size, or a file is missing or
            damaged.
    """
    name, arguments = SIZES[network.name]
    check_folder(folder)
    with _plain_errors(f"The weights of {folder} cannot be read"):
        theirs, arrays = _read(network, name, arguments, folder)
    prefix_tokens = FAMILIES[name].prefix_tokens
    for place, (there, here) in enumerate(zip(theirs, network.weights)):
        same = _numbers_positions(here)
        arrays[place] = (
            here.numpy() if same else _fitted(arrays[place], there.path, here.shape, prefix_tokens)
        )
    if differences := _differences(theirs, arrays, network.weights):
        more = f", and {len(differences) - 3:,} more" if len(differences) > 3 else ""
        raise InputError(
            f"The weights of {folder} do not fit {PREFIX}{network.name}; none were loaded:"
            f" {'; '.join(differences[:3])}{more}. It is a network of another size, or of another family."
        )
    for weight, array in zip(network.weights, arrays):
        weight.assign(array)
    if name == "dinov2" and not arguments.get("antialias_in_interpolation"):
        _interpolate_as_pytorch(network)


def _read(network, family, arguments, folder):
    """Returns the weights of the network that was saved, and their arrays, in the order of the network's.

    In order, since the names of layers depend on the name of the model that was saved.
    """
    if family in TOWERS and _is_hugging_face(os.path.join(folder, "config.json")):
        return network.weights, read_tower(network, family, arguments, folder)
    with _named(folder, family) as readable:
        # DINO's positions are interpolated by keras-hub for the size that it knows.
        size = {"image_shape": network.inputs[0].shape[1:]} if family.startswith("dino") else {}
        preset = _preset_class(family).from_preset(readable, **size)
    if family in TOWERS:
        preset, activation = preset.vision_encoder, arguments["intermediate_activation"]
        if preset.intermediate_activation != activation:
            raise InputError(
                f"{folder} has the activation {preset.intermediate_activation!r}, and the backbone"
                f" {activation!r}. Take the other of hub/clip_... and hub/openclip_..."
            )
    return preset.weights, [weight.numpy() for weight in preset.weights]


def _differences(theirs, arrays, ours):
    """In words, where two lists of weights differ in kind or shape."""
    differences = []
    for there, array, here in itertools.zip_longest(theirs, arrays, ours):
        if there is None:
            differences.append(f"{here.path} is missing")
        elif here is None:
            differences.append(f"{there.path} is not of this network")
        elif array.shape != tuple(here.shape) or _kind(there) != _kind(here):
            differences.append(f"{here.path} has shape {tuple(here.shape)}, {array.shape} in the folder")
    return differences


def _kind(weight):
    """The name of a weight; Keras numbers those that have none."""
    return re.sub(r"^variable_\d+$", "variable", weight.name)


def check_folder(folder: str) -> None:
    """Raises InputError unless a folder has a config, and all the files of weights that it names."""
    config = os.path.join(folder, "config.json")
    if not os.path.isfile(config):
        raise InputError(
            f"{folder} is no folder of a model: it has no config.json. Give the folder of a Keras preset, or"
            " of a Hugging Face model, by `weights=FOLDER`."
        )
    if _is_hugging_face(config):
        named = safetensors_files.names_of_files(folder)
    elif not os.path.isfile(os.path.join(folder, "model.weights.h5")) and _is_sharded_preset(folder):
        return
    else:
        named = ["model.weights.h5"]
    for name in named:
        if not os.path.isfile(os.path.join(folder, name)):
            raise InputError(f"{folder} has no {name}. Download the whole model again.")


def _is_sharded_preset(folder):
    return os.path.isfile(os.path.join(folder, "model.weights.json"))


def _is_hugging_face(config):
    return "model_type" in json_files.read(
        config, json_files.record({}, others=True), safetensors_files.AGAIN
    )


@contextlib.contextmanager
def _named(folder, family):
    """Yields a folder whose weights have the names that keras-hub knows, those of a classifier."""
    path = os.path.join(folder, "model.safetensors")
    names = safetensors_files.names(path) if os.path.isfile(path) else []
    prefix = FAMILIES[family].names
    if not names or not prefix or any(name.startswith(prefix) for name in names):
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        safetensors_files.rename(path, os.path.join(temporary, "model.safetensors"), prefix)
        for name in set(os.listdir(folder)) - {"model.safetensors"}:
            os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(temporary, name))
        yield temporary


def _interpolate_as_pytorch(network):
    """Sets DINOv2's interpolated positions; keras-hub's are those of TensorFlow's bicubic interpolation."""
    tables = {weight.name: weight for weight in network.weights if "position_embeddings" in weight.name}
    there, here = tables["position_embeddings"].numpy()[0], tables["interpolated_position_embeddings"]
    if here.shape != (1, *there.shape):
        patches = resized_positions(there[1:], here.shape[1] - 1)
        here.assign(np.concatenate([there[:1], patches])[None])


def _fitted(array, path, shape, prefix_tokens):
    """The weight; interpolated if it is a table of positions of another number of patches."""
    if not path.endswith(_POSITIONS) or array.shape[-1] != shape[-1] or array.shape == tuple(shape):
        return array
    table = array.reshape(-1, shape[-1])
    patches = resized_positions(table[prefix_tokens:], math.prod(shape[:-1]) - prefix_tokens)
    return np.concatenate([table[:prefix_tokens], patches]).reshape(shape)


def resized_positions(table: np.ndarray, patches: int) -> np.ndarray:
    """Position embeddings of another number of patches, by PyTorch's bicubic interpolation of the square map.

    Args:
        table: `[patches, dim]`, row by row of a square map.
        patches: the number of patches of another square map.

    >>> resized_positions(np.ones([4, 3]), 9).shape
    (9, 3)
    """
    side, dim = round(len(table) ** 0.5), table.shape[1]
    weights = _cubic(side, round(patches**0.5))
    square = table.reshape(side, side, dim)
    return np.einsum("ai,bj,ijd->abd", weights, weights, square).reshape(patches, dim).astype(table.dtype)


def _cubic(size: int, target: int, a: float = -0.75) -> np.ndarray:
    """`[target, size]` weights of cubic convolution between the centres of pixels; borders are repeated."""
    place = (np.arange(target) + 0.5) * size / target - 0.5
    first = np.floor(place).astype(int)
    weights = np.zeros([target, size])
    for offset in range(-1, 3):
        x = np.abs(place - (first + offset))
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        column = np.clip(first + offset, 0, size - 1)
        np.add.at(weights, (np.arange(target), column), np.where(x <= 1, near, far))
    return weights
