"""MobileNetV2's files, of older and of today's torchvision, and in an installed package."""

import importlib.util

import keras
import numpy as np
import pytest

from tests.models import pth
from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.models.embedding import embedding_model
from tfrank.models.mobilenet import current_names
from tfrank.models.packaged import PACKAGED, file_of
from tfrank.models.weights import load_backbone_weights

# A layer of each kind, by its name in older files and today's: stem, first block, a later one, the last.
NAMES = {
    "features.0.1.weight": "features.0.1.weight",
    "features.1.conv.0.weight": "features.1.conv.0.0.weight",
    "features.1.conv.1.running_var": "features.1.conv.0.1.running_var",
    "features.1.conv.3.weight": "features.1.conv.1.weight",
    "features.1.conv.4.bias": "features.1.conv.2.bias",
    "features.2.conv.0.weight": "features.2.conv.0.0.weight",
    "features.2.conv.3.weight": "features.2.conv.1.0.weight",
    "features.2.conv.4.weight": "features.2.conv.1.1.weight",
    "features.2.conv.6.weight": "features.2.conv.2.weight",
    "features.2.conv.7.weight": "features.2.conv.3.weight",
    "features.18.0.weight": "features.18.0.weight",
}


def test_older_names_become_those_of_today_which_stay():
    old = dict.fromkeys(NAMES, np.ones(1))
    assert list(current_names(old)) == list(NAMES.values())
    assert list(current_names(current_names(old))) == list(NAMES.values())


def test_depthwise_kernels_of_a_pytorch_file_keep_their_channels(tmp_path):
    keras.utils.set_random_seed(0)
    model, other = (
        embedding_model(backbone="mobilenet_v2", image_size=32, embedding_dim=3) for _ in range(2)
    )
    names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "kernel": "weight"}
    names["moving_variance"] = "running_var"
    state = {}
    for variable in model.get_layer("mobilenet_v2").variables:
        _, layer, kind = variable.path.split("/")
        array = variable.numpy()
        if array.ndim == 4:
            array = array.transpose((2, 3, 0, 1) if variable.shape[-1] == 1 else (3, 2, 0, 1))
        state[f"{layer}.{names[kind]}"] = np.ascontiguousarray(array)
    state["classifier.1.weight"] = np.ones([1000, 1280], np.float32)
    pth.save_state(tmp_path / "net.pth", state)
    load_backbone_weights(other, str(tmp_path / "net.pth"))
    for one, two in zip(model.get_layer("mobilenet_v2").weights, other.get_layer("mobilenet_v2").weights):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("weights", ["package:no_such_package/a.pt", "package:../etc/a.pt", "package:"])
def test_a_package_that_is_not_installed_is_named(weights):
    with pytest.raises(InputError, match="which is not installed"):
        file_of(weights)


def installed(name):
    """A network, skipped where the package of its weights is not installed."""
    package = PACKAGED[name].weights.removeprefix("package:").partition("/")[0]
    missing = not importlib.util.find_spec(package)
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason="extra bench or photos"))


@pytest.mark.parametrize("name", [installed(name) for name in PACKAGED])
def test_the_packaged_weights_of_imagenet_tell_a_flower_from_china(name):
    """On scikit-learn's two photos: quarters of one photo are nearer to each other than to the other's."""
    from sklearn.datasets import load_sample_images

    model = embedding_model(backbone=name, image_size=160, head="none", embedding_dim=1)
    load_backbone_weights(model, "imagenet")
    quarters = [
        photo[top : top + 160, left : left + 160]
        for photo in load_sample_images().images
        for top in (100, 260)
        for left in (150, 310)
    ]
    embeddings = l2_normalize(model(np.float32(quarters))).numpy()
    similarity = embeddings @ embeddings.T
    assert similarity[:4, :4].min() > similarity[:4, 4:].max()
    assert similarity[4:, 4:].min() > similarity[:4, 4:].max()
