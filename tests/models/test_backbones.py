"""Backbones: their names, sizes, paths, and Keras' own networks with their own preprocessing."""

import functools
import inspect

import keras
import numpy as np
import pytest

from tests.cases import slow, slow_but
from tests.models import recorded
from tfrank.common.checks import InputError
from tfrank.models import applications, weights
from tfrank.models.applications import APPLICATIONS, preprocessing_of
from tfrank.models.backbones import BACKBONES, NETWORKS, default_preprocessing, network
from tfrank.models.bn_inception import check_size
from tfrank.models.convolution import conv, max_pool
from tfrank.models.embedding import embedding_model
from tfrank.models.hub_sizes import HUB
from tfrank.models.preprocessing import preprocess

# Published numbers of parameters with the classifier of 1,000 classes, and the features that it takes.
PUBLISHED = {
    "resnet50": (25_557_032, 2048),
    "resnet101": (44_549_160, 2048),
    "se_resnet50": (28_088_024, 2048),
    "bn_inception": (11_295_240, 1024),
    "mobilenet_v2": (3_504_872, 1280),
    "efficientnet_lite0": (4_652_008, 1280),
    "efficientnet_lite1": (5_416_680, 1280),
    "efficientnet_lite2": (6_092_072, 1280),
}
# The first of each family in alphabetical order, or a small one.
FAMILIES = [
    "ConvNeXtTiny",
    "DenseNet121",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "NASNetMobile",
    "ResNet50",
    "ResNet50V2",
    "VGG16",
    "VGG19",
    "Xception",
]
QUICK = ("MobileNet",)


def count(variables):
    return sum(int(np.prod(variable.shape)) for variable in variables)


@pytest.mark.parametrize("name", slow_but(["resnet50"], PUBLISHED))
def test_a_trained_backbone_has_the_published_number_of_parameters(name):
    published, features = PUBLISHED[name]
    backbone = network(name, image_size=224, batch_norm="trained")
    assert backbone.output_shape == (None, 7, 7, features)
    assert count(backbone.trainable_variables) + features * 1000 + 1000 == published


def recorded_weight(variable):
    """The weight that PyTorch's network had, by its name and in its order of axes there."""
    _, layer, name = variable.path.split("/")
    names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "kernel": "weight"}
    names["moving_variance"] = "running_var"
    # A depthwise kernel has its channels third, where others have their inputs.
    axes = (2, 3, 0, 1) if variable.shape[-1] == 1 else (3, 2, 0, 1)
    shape = [variable.shape[axis] for axis in axes] if name == "kernel" else variable.shape
    array = recorded.weight(f"{layer}.{names.get(name, name)}", tuple(shape))
    return array.transpose(np.argsort(axes)) if name == "kernel" else array


@pytest.mark.parametrize("name", slow_but(set(recorded.SIDES) - {"resnet101", "se_resnet50"}, recorded.SIDES))
def test_maps_are_those_recorded_from_pytorch(name):
    side = recorded.SIDES[name]
    backbone = network(name, image_size=side, batch_norm="frozen")
    for variable in backbone.variables:
        variable.assign(recorded_weight(variable))
    maps = backbone(recorded.image(side).astype("float32"))
    np.testing.assert_allclose(recorded.summary(maps), recorded.SUMMARIES[name], rtol=1e-4)


def test_resnets_without_classifier_are_of_the_sizes_in_the_papers():
    counts = {name: published - features * 1000 - 1000 for name, (published, features) in PUBLISHED.items()}
    assert counts["resnet50"] == 23_508_032 and counts["resnet101"] == 42_500_160


def test_a_resnet_50_by_hand_has_as_many_parameters():
    total, inputs = 64 * 3 * 49 + 2 * 64, 64
    for filters, blocks in [(64, 3), (128, 4), (256, 6), (512, 3)]:
        for block in range(blocks):
            total += inputs * filters + filters * filters * 9 + filters * 4 * filters + 2 * (6 * filters)
            if block == 0:
                total += inputs * 4 * filters + 2 * 4 * filters
            inputs = 4 * filters
    assert total == 23_508_032


def test_frozen_backbones_have_no_gamma_beta_or_statistics_to_train():
    backbone = network("resnet50", image_size=32, batch_norm="frozen")
    assert {variable.path.split("/")[-1] for variable in backbone.trainable_variables} == {"kernel"}
    assert len(backbone.trainable_variables) == 53 and len(backbone.variables) == 53 * 5


@pytest.mark.parametrize("name", ["resnet50", "keras/MobileNet"])
def test_frozen_statistics_leave_gamma_and_beta_to_train(name):
    backbone = network(name, image_size=32, batch_norm="statistics")
    kinds = {variable.path.split("/")[-1] for variable in backbone.trainable_variables}
    assert {"gamma", "beta"} <= kinds and not kinds & {"moving_mean", "moving_variance"}
    x = np.random.default_rng(0).normal(size=[2, 32, 32, 3]).astype("float32")
    np.testing.assert_array_equal(backbone(x, training=True), backbone(x, training=False))


def test_trained_batch_norm_is_over_the_global_batch_in_all_of_them():
    for name in ("resnet50", "keras/MobileNet"):
        layers = network(name, image_size=32, batch_norm="trained").layers
        norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
        assert norms and all(norm.synchronized and norm.trainable for norm in norms)


@pytest.mark.parametrize(
    "name, paths",
    [
        ("resnet50", ["resnet50/conv1/kernel", "resnet50/layer1.0.downsample.0/kernel"]),
        ("se_resnet50", ["se_resnet50/layer0.conv1/kernel", "se_resnet50/layer4.2.se_module.fc2/bias"]),
        ("bn_inception", ["bn_inception/inception_3a_double_3x3_reduce_bn/gamma"]),
        ("keras/MobileNet", ["MobileNet/conv1_bn/moving_mean"]),
    ],
)
def test_paths_of_variables_begin_with_the_backbone_and_are_distinct(name, paths):
    size = 64 if name == "bn_inception" else 32
    model = embedding_model(backbone=name, image_size=size, embedding_dim=8)
    found = [variable.path for variable in model.variables]
    assert set(paths) <= set(found) and len(set(found)) == len(found)
    assert [path for path in found if "embedding" in path] == ["embedding/kernel", "embedding/bias"]
    assert all(path.startswith((f"{name.removeprefix('keras/')}/", "embedding/")) for path in found)


def test_a_strided_convolution_is_padded_alike_on_all_sides():
    """Where Keras' "same" would look one pixel further to the right and bottom."""
    images = keras.Input([4, 4, 1])
    model = keras.Model(images, conv(images, 1, 3, stride=2, name="conv"))
    model.get_layer("conv").kernel.assign(np.ones([3, 3, 1, 1]))
    pixels = np.arange(16, dtype="float32").reshape(1, 4, 4, 1)
    padded = np.pad(pixels[0, :, :, 0], 1)
    wanted = [[padded[i : i + 3, j : j + 3].sum() for j in (0, 2)] for i in (0, 2)]
    np.testing.assert_array_equal(model(pixels)[0, :, :, 0], wanted)


@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("side", [4, 5, 7, 8])
def test_max_pooling_is_that_of_pytorch(pad, side):
    """With padding windows start at -1; without, at 0 until the map is covered."""
    pixels = np.random.default_rng(0).uniform(size=[1, side, side, 1]).astype("float32")
    starts = range(-1, side - 1, 2) if pad else range(0, side - 1, 2)
    wanted = [[pixels[0, max(i, 0) : i + 3, max(j, 0) : j + 3, 0].max() for j in starts] for i in starts]
    images = keras.Input([side, side, 1])
    np.testing.assert_array_equal(keras.Model(images, max_pool(images, pad=pad))(pixels)[0, ..., 0], wanted)


def test_every_network_of_keras_applications_is_known_by_name_and_narrow_ones():
    made = {name for name, make in vars(keras.applications).items() if inspect.isfunction(make)}
    made |= {f"MobileNetV2-{width}" for width in (0.35, 0.5, 0.75)}
    assert {f"keras/{name}" for name in made} == set(BACKBONES) - {"convnet", *NETWORKS, *HUB}
    assert len(APPLICATIONS) >= 38 and {"ResNet152V2", "EfficientNetB7", "MobileNetV3Large"} <= set(
        APPLICATIONS
    )
    assert {inspect.getmodule(APPLICATIONS[name]) for name in FAMILIES} == {
        inspect.getmodule(make) for make in APPLICATIONS.values()
    }


def test_a_narrow_network_is_that_of_keras():
    model = embedding_model(backbone="keras/MobileNetV2-0.35", image_size=32, head="none", embedding_dim=8)
    options = {"include_top": False, "weights": None, "input_shape": (32, 32, 3)}
    theirs = keras.applications.MobileNetV2(alpha=0.35, **options)
    assert (
        model.count_params()
        == theirs.count_params()
        < 0.2 * APPLICATIONS["MobileNetV2"](**options).count_params()
    )


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_preprocessing_is_the_familys_own(name):
    pixels = np.random.default_rng(0).uniform(0, 255, [2, 3, 3, 3]).astype("float32")
    wanted = inspect.getmodule(APPLICATIONS[name]).preprocess_input(pixels.copy())
    np.testing.assert_allclose(preprocess(pixels, preprocessing_of(name)), wanted, rtol=1e-5, atol=1e-4)


def randomize(model):
    random = np.random.default_rng(0)
    for variable in model.weights:
        if "variance" in variable.path or "gamma" in variable.path:
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
        elif variable.dtype == "float32" and variable.shape:
            variable.assign(variable + random.normal(0, 0.01, variable.shape))


@pytest.mark.parametrize(
    "name", [*QUICK, *map(slow, ("ConvNeXtTiny", "EfficientNetB0", "InceptionV3", "ResNet50V2"))]
)
def test_a_network_of_keras_gives_what_it_gives_by_itself(name, monkeypatch, tmp_path):
    """Keras' weights arrive in the right layers, by download and by file, after the right preprocessing."""
    size = 75 if name.startswith(("Inception", "Xception")) else 32
    make = APPLICATIONS[name]
    theirs = make(include_top=False, weights=None, input_shape=(size, size, 3))
    randomize(theirs)
    for layer in theirs.layers:
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
    theirs.save_weights(tmp_path / "theirs.weights.h5")

    @functools.wraps(make)
    def download(**options):
        return theirs if options["weights"] == "imagenet" else make(**options)

    monkeypatch.setitem(APPLICATIONS, name, download)
    images = np.random.default_rng(1).uniform(0, 255, [2, size, size, 3]).astype("float32")
    model = embedding_model(backbone=f"keras/{name}", image_size=size, embedding_dim=8)
    before, embedded = model.get_weights(), []
    for source in ("imagenet", str(tmp_path / "theirs.weights.h5")):
        model.set_weights(before)
        weights.load_backbone_weights(model, source)
        embedded.append(model(images, training=False))
    kernel, bias = model.get_layer("embedding").get_weights()
    if name.startswith("EfficientNetB"):  # Keras divides by this too where it loads its ImageNet weights.
        layer = next(each for each in theirs.layers if isinstance(each, keras.layers.Normalization))
        layer.adapt_variance.assign(layer.adapt_variance * np.float32([0.229, 0.224, 0.225]))
        layer.finalize_state()
    preprocessed = inspect.getmodule(make).preprocess_input(images.copy())
    wanted = np.mean(theirs(preprocessed, training=False), axis=(1, 2)) @ kernel + bias
    for values in embedded:
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(backbone="resnet_50"), 'argument `backbone`.*Did you mean "resnet50"'),
        (dict(backbone="keras/EfficentNetB0"), 'Did you mean "keras/EfficientNetB0"'),
        (dict(backbone="resnet50", image_size=31), "image_size.*at least 32"),
        (dict(backbone="bn_inception", image_size=200), "image_size.*bn_inception can halve.*227"),
        (dict(backbone="keras/InceptionV3", image_size=64), "keras/InceptionV3 cannot be built.*75"),
    ],
)
def test_bad_names_and_sizes_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        embedding_model(**{"image_size": 64, "embedding_dim": 8, **options})


def test_the_sizes_of_bn_inception_are_those_that_pytorch_can_run():
    def maps(size):
        side = (size + 1) // 2
        for _ in range(2):
            side = -((3 - side) // 2) + 1  # ceil((side - 3) / 2) + 1
        return side

    for size in range(32, 300):
        if maps(size) % 4 == 0:
            check_size(size)
        else:
            with pytest.raises(InputError):
                check_size(size)
    assert maps(224) == maps(227) == 28


def test_what_a_backbone_expects_is_known_without_building_it():
    assert default_preprocessing("keras/VGG16") == "caffe_bgr"
    assert default_preprocessing("keras/DenseNet121") == "imagenet_rgb" == default_preprocessing("resnet101")
    assert applications.preprocessing_of("ConvNeXtTiny") == "raw"
