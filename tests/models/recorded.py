"""Weights that follow from their names, and what PyTorch's networks give with them.

So the networks can be compared with PyTorch's where it is not installed; where it is, the numbers here are
(`test_pytorch_equality.py`).
"""

import zlib

import numpy as np

# The sides are such that borders matter where they may.
SIDES = {"resnet50": 64, "resnet101": 64, "se_resnet50": 65, "bn_inception": 99, "mobilenet_v2": 65}
# Of the last map of one image: mean, standard deviation, and the largest number at the first pixel.
SUMMARIES = {
    "resnet50": (4181.820589066576, 5047.255004728944, 24024.70689014065),
    "resnet101": (20406969.224758387, 24935011.791877642, 119709542.15922362),
    "se_resnet50": (211.0619055269479, 288.9701567540108, 1607.8384838881968),
    "bn_inception": (4.196409575895793, 6.682172109170505, 43.8570813039907),
    "mobilenet_v2": (1.5126692252366698, 2.096196812039608, 6.0),
}


def weight(name, shape):
    """The weight of a name in a state dict, in PyTorch's order of axes."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
        return random.uniform(0.5, 1.5, shape)
    if len(shape) == 1:
        return random.normal(0, 0.1, shape)
    return random.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)


def image(size):
    """One preprocessed image, `[1, size, size, 3]`."""
    return np.random.default_rng(0).normal(size=[1, size, size, 3])


def summary(maps):
    """What is recorded of a map `[1, height, width, channels]`."""
    maps = np.asarray(maps, "float64")
    return float(maps.mean()), float(maps.std()), float(maps[0, 0, 0].max())
