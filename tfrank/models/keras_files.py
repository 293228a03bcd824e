"""Weights in Keras' files, by the names of a backbone's weights: nothing runs, no other file is read."""

import contextlib
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator

import h5py
import keras
import numpy as np

# The most layers with weights that a classifier has: VGG's.
_CLASSIFIER_LAYERS = 3


def leaves(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of a model, those of the models within it in their place."""
    for layer in model.layers:
        yield from leaves(layer) if isinstance(layer, keras.Model) else [layer]


def named_weights(layer: keras.layers.Layer) -> dict[str, keras.Variable]:
    """The weights of a layer, or of a model as a layer, by the name `layer/variable`."""
    parts = leaves(layer) if isinstance(layer, keras.Model) else [layer]
    return {f"{part.name}/{variable.name}": variable for part in parts for variable in part.weights}


def read_saved(path: str, backbone: keras.Model, *, by_name: bool) -> dict[str, np.ndarray]:
    """The arrays of a `.weights.h5` or `.keras` file of the backbone, or of a model with it.

    Args:
        path: of the file.
        backbone: whose weights they are to be.
        by_name: whether its layers have names of their own. If not, their places in the file decide:
            those are the same in every file of the same network, where Keras counts names anew each time.
    """
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive:
            path = io.BytesIO(archive.read("model.weights.h5"))
    groups = _groups(path, backbone.name)
    names = {layer.name: list(named_weights(layer)) for layer in leaves(backbone)}
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
    """The arrays of an `.h5` file as `keras.applications` downloads them, with or without a classifier.

    Its layers are in the order of the network's, the classifier last.
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
    """Arrays by their keys; those that there is no key for by their number."""
    return {
        keys[number] if number < len(keys) else f"{name}/{number}": array
        for number, array in enumerate(arrays)
    }


def _groups(path, root):
    """Of every layer in a `.weights.h5` file: its place, and there its name and arrays.

    Only what lies in the model named `root`, where there is one.
    """
    groups = {}

    def visit(path, item):
        if isinstance(item, h5py.Group) and path.split("/")[-1] == "vars":
            arrays = [item[str(number)][()] for number in range(len(item))]
            # Frozen or not, a batch norm has the same place.
            place = path.removesuffix("vars").replace("frozen_", "")
            groups[place] = (_text(item.attrs.get("name", path)), arrays)

    with _opened(path) as file:
        file.visititems(visit)
    within = next((place for place, (name, _) in groups.items() if name == root), "")
    return {place.removeprefix(within): value for place, value in groups.items() if place.startswith(within)}


@contextlib.contextmanager
def _opened(path: str | io.BytesIO) -> Iterator[h5py.File]:
    """An HDF5 file that holds all of its data itself; ValueError where some of it lies in another file.

    HDF5 would read from any file that one names: by links, external storage or virtual datasets.
    """

    def check(name, item):
        if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            raise ValueError(f"its dataset {name} lies in another file")
        for key in item if isinstance(item, h5py.Group) else ():
            if not isinstance(item.get(key, getlink=True), h5py.HardLink):
                raise ValueError(f"its item {name}/{key} is a link, which is not followed")

    with h5py.File(path) as file:
        check("", file)
        file.visititems(check)
        yield file


def _text(name):
    """A name as text, by which only what hangs in the file's own tree is found."""
    return name.decode() if isinstance(name, bytes) else str(name)
