"""Reads weights from Keras' files, by the names of a backbone's weights.

No code in a file is run, and no other file is read.
"""

import contextlib
import io
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator

import h5py
import keras
import numpy as np

# The largest number of layers with weights in a classifier: that of VGG.
_CLASSIFIER_LAYERS = 3
# In memory, a file may take so many bytes, and so many times its own size more.
_MOST_BYTES, _MOST_RATIO = 2**28, 10


def leaf_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of a model, with nested models replaced by their layers."""
    for layer in model.layers:
        yield from leaf_layers(layer) if isinstance(layer, keras.Model) else [layer]


def named_weights(layer: keras.layers.Layer) -> dict[str, keras.Variable]:
    """The weights of a layer, or of a nested model, by the name `layer/variable`."""
    parts = leaf_layers(layer) if isinstance(layer, keras.Model) else [layer]
    return {f"{part.name}/{variable.name}": variable for part in parts for variable in part.weights}


def read_saved(path: str, backbone: keras.Model, *, by_name: bool) -> dict[str, np.ndarray]:
    """The arrays of a `.weights.h5` or `.keras` file of the backbone, or of a model that contains it.

    Args:
        path: path of the file.
        backbone: the network that the weights are for.
        by_name: whether the layers of the backbone have fixed names. If not, arrays are matched by their
            position in the file. It is the same in every file of a network, whereas Keras numbers names anew
            each time.
    """
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("model.weights.h5").file_size > _bound(os.path.getsize(path)):
                raise ValueError("it unpacks to far more than its own size")
            path = io.BytesIO(archive.read("model.weights.h5"))
    groups = _groups(path, backbone.name)
    names = {layer.name: list(named_weights(layer)) for layer in leaf_layers(backbone)}
    if by_name:
        groups = {name: arrays for name, arrays in groups.values()}
    else:
        with tempfile.TemporaryDirectory() as folder:
            same = os.path.join(folder, "same.weights.h5")
            backbone.save_weights(same)
            names = {place: names.get(name, []) for place, (name, _) in _groups(same, backbone.name).items()}
        groups = {place: arrays for place, (_, arrays) in groups.items()}
        beyond = [place for place, arrays in groups.items() if arrays and not names.get(place)]
        for place in beyond if len(beyond) <= _CLASSIFIER_LAYERS else ():
            del groups[place]
    found = {}
    for group, arrays in groups.items():
        found |= _numbered(arrays, names.get(group, []), group)
    return found


def read_download(path: str, backbone: keras.Model) -> dict[str, np.ndarray]:
    """The arrays of an `.h5` file in the format that `keras.applications` downloads.

    The file may have a classifier. It lists the layers in the order of the network, the classifier last.
    """
    with _opened(path) as file:
        file = file.get("model_weights", file)
        groups = [
            (name, [file[name][_text(key)][()] for key in file[name].attrs["weight_names"]])
            for name in map(_text, file.attrs["layer_names"])
        ]
    groups = [(name, arrays) for name, arrays in groups if arrays]
    layers = [layer for layer in backbone.layers if layer.weights]
    beyond = groups[len(layers) :]
    if len(beyond) <= _CLASSIFIER_LAYERS:
        groups = groups[: len(layers)]
    found = {}
    for number, (name, arrays) in enumerate(groups):
        keys = list(named_weights(layers[number])) if number < len(layers) else []
        found |= _numbered(arrays, keys, name)
    return found


def _numbered(arrays, keys, name):
    """The arrays by key; surplus arrays get the layer's name and their number as key."""
    return {
        keys[number] if number < len(keys) else f"{name}/{number}": array
        for number, array in enumerate(arrays)
    }


def _groups(path, root):
    """Maps the place of every layer in a `.weights.h5` file to its name and arrays.

    If the file has a model named `root`, takes only the layers inside it.
    """
    groups = {}

    def visit(path, item):
        if isinstance(item, h5py.Group) and path.split("/")[-1] == "vars":
            arrays = [item[str(number)][()] for number in range(len(item))]
            # Gives a batch norm the same place, frozen or not.
            place = re.sub("frozen_(statistics_)?", "", path.removesuffix("vars"))
            groups[place] = (_text(item.attrs.get("name", path)), arrays)

    with _opened(path) as file:
        file.visititems(visit)
    within = next((place for place, (name, _) in groups.items() if name == root), "")
    return {place.removeprefix(within): value for place, value in groups.items() if place.startswith(within)}


@contextlib.contextmanager
def _opened(path: str | io.BytesIO) -> Iterator[h5py.File]:
    """Opens an HDF5 file; raises ValueError if some of its data is in another file.

    HDF5 would read any other file that the file names, by links, external storage or virtual datasets.
    """

    size = os.path.getsize(path) if isinstance(path, str) else path.getbuffer().nbytes
    sizes = []

    def check(name, item):
        sizes.append(item.nbytes if isinstance(item, h5py.Dataset) else 0)
        if sum(sizes) > _bound(size):
            raise ValueError("in memory it takes far more than its own size")
        if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            raise ValueError(f"its dataset {name} lies in another file")
        for key in item if isinstance(item, h5py.Group) else ():
            if not isinstance(item.get(key, getlink=True), h5py.HardLink):
                raise ValueError(f"its item {name}/{key} is a link, which is not followed")

    with h5py.File(path) as file:
        check("", file)
        file.visititems(check)
        yield file


def _bound(size: int) -> int:
    return _MOST_BYTES + _MOST_RATIO * size


def _text(name):
    """A name as text. A name, unlike an HDF5 reference, finds only items in the tree of the file itself."""
    return name.decode() if isinstance(name, bytes) else str(name)
