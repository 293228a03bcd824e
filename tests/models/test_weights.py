"""Weights of a backbone: from files of PyTorch and Keras, whole or not at all."""

import functools
import re
import zipfile

import h5py
import keras
import numpy as np
import pytest

from tests.cases import slow
from tests.models import pth, safetensor
from tfrank.common.checks import InputError
from tfrank.models.applications import APPLICATIONS
from tfrank.models.backbones import NETWORKS
from tfrank.models.embedding import BATCH_NORMS, embedding_model
from tfrank.models.packaged import PACKAGED
from tfrank.models.resnet import resnet, se_resnet
from tfrank.models.weights import PUBLISHED, check_exists, load_backbone_weights


@pytest.fixture
def small_networks(monkeypatch):
    """One block a stage, so that files are small and tests quick."""
    blocks = (1, 1, 1, 1)
    for name, make in (("resnet50", resnet), ("resnet101", resnet), ("se_resnet50", se_resnet)):
        monkeypatch.setitem(NETWORKS, name, (functools.partial(make, blocks=blocks), "imagenet_rgb"))


@pytest.fixture(scope="module")
def mobilenet():
    """Keras' own, with statistics that are not those of the beginning."""
    network = APPLICATIONS["MobileNet"](include_top=True, weights=None, input_shape=(32, 32, 3), classes=5)
    random = np.random.default_rng(0)
    for variable in network.weights:
        if len(variable.shape) == 1:
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return network


def model_of(name, seed=0, **options):
    keras.utils.set_random_seed(seed)
    size = 64 if name == "bn_inception" else 32
    return embedding_model(**{"backbone": name, "image_size": size, "embedding_dim": 3, **options})


def backbone_of(model):
    return next(layer for layer in model.layers if isinstance(layer, keras.Model))


def pytorch_state(model, seed=1):
    """Random numbers by PyTorch's names and order of axes, and what Keras is to make of them."""
    random = np.random.default_rng(seed)
    torch_names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "kernel": "weight"}
    torch_names |= {"moving_variance": "running_var", "bias": "bias"}
    state, wanted = {}, {}
    for variable in backbone_of(model).variables:
        _, layer, name = variable.path.split("/")
        array = random.uniform(0.5, 1.5, variable.shape).astype("float32")
        wanted[variable.path] = array
        torch_array = np.ascontiguousarray(array.transpose(3, 2, 0, 1)) if array.ndim == 4 else array
        state[f"{layer}.{torch_names[name]}"] = torch_array
        if name == "gamma":
            state[f"{layer}.num_batches_tracked"] = np.int64(7)
    return state, wanted


def assert_holds(model, wanted):
    for variable in backbone_of(model).variables:
        np.testing.assert_array_equal(variable.numpy(), wanted[variable.path])


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
@pytest.mark.parametrize("name, classifier", [("resnet50", "fc"), ("se_resnet50", "last_linear")])
@pytest.mark.parametrize("file", ["net.pth", "net.safetensors"])
def test_a_pytorch_file_arrives_in_every_layer(name, classifier, batch_norm, file, small_networks, tmp_path):
    model = model_of(name, batch_norm=batch_norm)
    state, wanted = pytorch_state(model)
    state |= {f"{classifier}.weight": np.ones([2, 2048], "f4"), f"{classifier}.bias": np.ones([2], "f4")}
    save = safetensor.save if file.endswith(".safetensors") else pth.save_state
    save(tmp_path / file, state)
    head = model.get_layer("embedding").get_weights()
    load_backbone_weights(model, str(tmp_path / file))
    assert_holds(model, wanted)
    for one, other in zip(head, model.get_layer("embedding").get_weights()):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("levels", [slow(""), "ML"])
def test_a_whole_bn_inception_fits_one_of_fewer_levels(levels, tmp_path):
    state, wanted = pytorch_state(model_of("bn_inception"))
    # As in files of 2017: vectors of batch norm with a first axis of 1.
    state = {key: value[None] if value.ndim == 1 and "_bn." in key else value for key, value in state.items()}
    pth.save_state(tmp_path / "net.pth", state, legacy=True)
    model = model_of("bn_inception", levels=levels)
    load_backbone_weights(model, str(tmp_path / "net.pth"))
    assert_holds(model, wanted)


def test_differences_are_counted_and_named_and_nothing_is_loaded(small_networks, tmp_path):
    model = model_of("resnet50")
    before = [variable.numpy() for variable in model.variables]
    state, _ = pytorch_state(model)
    state["layer1.0.conv1.weight"] = np.ones([64, 3, 1, 1], "f4")
    del state["bn1.running_mean"]
    state |= {f"layer9.{n}.weight": np.ones([1], "f4") for n in range(12)}
    pth.save_state(tmp_path / "net.pth", state)
    with pytest.raises(InputError) as error:
        load_backbone_weights(model, str(tmp_path / "net.pth"))
    message = str(error.value)
    assert "net.pth do not fit the backbone resnet50; none were loaded" in message
    assert "bn1/moving_mean is missing" in message and "and 4 more" in message
    assert len(message.splitlines()) == 12
    for one, variable in zip(before, model.variables):
        np.testing.assert_array_equal(one, variable.numpy())


def test_a_difference_of_shape_is_named_with_both(small_networks, tmp_path):
    model = model_of("resnet50")
    state, _ = pytorch_state(model)
    state["layer1.0.conv1.weight"] = np.ones([64, 3, 1, 1], "f4")
    pth.save_state(tmp_path / "net.pth", state)
    with pytest.raises(
        InputError,
        match=r"layer1\.0\.conv1/kernel has shape \(1, 1, 3, 64\) in the file, \(1, 1, 64, 64\) here",
    ):
        load_backbone_weights(model, str(tmp_path / "net.pth"))


@pytest.mark.parametrize(
    "name, suffix, whole",
    [
        ("resnet50", ".keras", True),
        slow("resnet50", ".keras", False),
        slow("resnet50", ".weights.h5", True),
        ("resnet50", ".weights.h5", False),
        slow("keras/MobileNet", ".keras", False),
        ("keras/MobileNet", ".weights.h5", True),
    ],
)
def test_what_one_model_saved_another_loads(name, suffix, whole, small_networks, tmp_path):
    """Of a backbone or of a model with it, frozen then otherwise."""
    saved, path = model_of(name), tmp_path / f"saved{suffix}"
    part = saved if whole else backbone_of(saved)
    part.save(path) if suffix == ".keras" else part.save_weights(path)
    for batch_norm in ("statistics", "trained"):
        model = model_of(name, seed=1, batch_norm=batch_norm, pooling="gem")
        load_backbone_weights(model, str(path))
        assert_holds(model, {variable.path: variable.numpy() for variable in backbone_of(saved).variables})


@pytest.mark.slow
def test_a_file_of_more_levels_fits_fewer(tmp_path):
    """The layers lie in another order then."""
    saved = model_of("bn_inception", levels="LMH")
    saved.save_weights(tmp_path / "saved.weights.h5")
    model = model_of("bn_inception", seed=1, levels="LM")
    load_backbone_weights(model, str(tmp_path / "saved.weights.h5"))
    assert_holds(model, {variable.path: variable.numpy() for variable in backbone_of(saved).variables})


@pytest.mark.parametrize("suffix", [".h5", ".weights.h5"])
@pytest.mark.parametrize("classifier", [True, False])
def test_files_of_keras_own_networks_are_read(classifier, suffix, mobilenet, tmp_path):
    """`.h5`: those that Keras downloads."""
    features = keras.Model(mobilenet.inputs, mobilenet.get_layer("conv_pw_13_relu").output)
    network, path = mobilenet if classifier else features, tmp_path / f"mobilenet{suffix}"
    network.save(path) if suffix == ".h5" else network.save_weights(path)
    model = model_of("keras/MobileNet")
    load_backbone_weights(model, str(path))
    assert_holds(model, {f"MobileNet/{variable.path}": variable.numpy() for variable in mobilenet.variables})


def test_an_npz_file_has_the_names_of_the_layers(small_networks, tmp_path):
    saved = model_of("resnet50")
    arrays = {variable.path: variable.numpy() for variable in backbone_of(saved).variables}
    np.savez(
        tmp_path / "net.npz", **{path.removeprefix("resnet50/"): array for path, array in arrays.items()}
    )
    model = model_of("resnet50", seed=1)
    load_backbone_weights(model, str(tmp_path / "net.npz"))
    assert_holds(model, arrays)


def test_random_leaves_the_weights_as_they_are():
    model = model_of("convnet")
    before = model.get_weights()
    load_backbone_weights(model, "random")
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)


def test_imagenet_without_a_network_says_what_to_do(monkeypatch):
    model = model_of("keras/MobileNet")

    def offline(**options):
        raise Exception(
            "URL fetch failure on https://storage/mobilenet_1_0_224_tf_no_top.h5: None -- unreachable"
        )

    monkeypatch.setitem(APPLICATIONS, "MobileNet", offline)
    ways = r"\(unreachable\).*=efficientnet_lite0`.* or download https://storage/mobilenet_\S*no_top\.h5"
    with pytest.raises(InputError, match=f"keras/MobileNet are not in .*{ways}") as caught:
        load_backbone_weights(model, "imagenet")
    assert "\n" not in str(caught.value)


def test_imagenet_for_the_convnet_is_refused_before_the_data_is_read():
    with pytest.raises(InputError, match="'random' for the convnet"):
        check_exists("imagenet", "convnet")


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in PACKAGED])
def test_imagenet_of_a_network_without_download_names_the_published_file(name, small_networks):
    with pytest.raises(InputError, match=f"no download.*{name}.*local file.*{re.escape(PUBLISHED[name])}"):
        load_backbone_weights(model_of(name), "imagenet")


@pytest.mark.parametrize(
    "name, file, message",
    [
        ("convnet", "imagenet", "`weights`.*'random' for the convnet"),
        ("resnet50", "net.onnx", r"`weights`.*'imagenet' or a file \.pth"),
        ("resnet50", "imagenett", "`weights`.*'imagenet'"),
        ("resnet50", "nowhere.pth", r"does not exist: .*nowhere\.pth"),
        ("resnet50", "some.h5", "some.h5: for resnet50 give a PyTorch file"),
        ("keras/MobileNet", "some.pth", "PyTorch files are read for resnet50.*not for keras/MobileNet"),
        ("resnet50", "some.pth", "some.pth is not a PyTorch file"),
        ("resnet50", "some.safetensors", "some.safetensors is not a safetensors file"),
        ("resnet50", "some.keras", "some.keras is not a file of weights"),
        ("resnet50", "some.weights.h5", "some.weights.h5 is not a file of weights"),
        ("resnet50", "some.npz", "some.npz is not a file of weights"),
        ("keras/MobileNet", "some.h5", "some.h5 is not a file of weights"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_what_to_do(name, file, message, small_networks, tmp_path):
    (tmp_path / file).write_bytes(b"garbage") if file.startswith("some") else None
    path = file if "imagenet" in file else str(tmp_path / file)
    with pytest.raises(InputError, match=message):
        load_backbone_weights(model_of(name), path)


def test_files_of_another_network_are_refused(mobilenet, small_networks, tmp_path):
    mobilenet.save_weights(tmp_path / "other.weights.h5")
    model_of("resnet50").save(tmp_path / "other.keras")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1.0
    with zipfile.ZipFile(tmp_path / "zip.keras", "w") as archive:
        archive.writestr("metadata.json", "{}")
    for name, file in [
        ("resnet50", "other.weights.h5"),
        ("keras/MobileNet", "other.keras"),
        ("se_resnet50", "other.keras"),
    ]:
        with pytest.raises(InputError, match="do not fit the backbone"):
            load_backbone_weights(model_of(name), str(tmp_path / file))
    for name, file in [("keras/MobileNet", "other.h5"), ("resnet50", "zip.keras")]:
        with pytest.raises(InputError, match="not a file of weights"):
            load_backbone_weights(model_of(name), str(tmp_path / file))


def lead_elsewhere(file, place, kind, secret):
    """Has a dataset of a file read from another one."""
    array = file[place][()]
    del file[place]
    if kind == "external storage":
        file.create_dataset(place, array.shape, "u1", external=[(secret, 0, array.size)])
    elif kind == "virtual dataset":
        layout = h5py.VirtualLayout(array.shape, "f4")
        layout[...] = h5py.VirtualSource(f"{secret}.h5", "x", array.shape)
        file.create_virtual_dataset(place, layout)
    elif kind == "external link":
        file[place] = h5py.ExternalLink(f"{secret}.h5", "x")
    elif kind == "link to a folder of another file":
        file["elsewhere"] = h5py.ExternalLink(f"{secret}.h5", "/")
        file[place] = h5py.SoftLink("/elsewhere/x")
    with h5py.File(f"{secret}.h5", "w") as other:
        other["x"] = array


@pytest.mark.parametrize(
    "kind",
    ["external storage", "virtual dataset", "external link", "link to a folder of another file"],
)
@pytest.mark.parametrize("suffix", [slow(".h5"), ".weights.h5", slow(".keras")])
def test_weights_are_read_from_no_other_file(kind, suffix, mobilenet, tmp_path):
    path, secret = tmp_path / f"some{suffix}", str(tmp_path / "secret")
    inner = tmp_path / "model.weights.h5" if suffix == ".keras" else path
    mobilenet.save(path) if suffix == ".h5" else mobilenet.save_weights(inner)
    with open(secret, "wb") as file:
        file.write(bytes(2**20))
    with h5py.File(inner, "a") as file:
        places = []
        file.visititems(lambda name, item: places.append(name) if isinstance(item, h5py.Dataset) else None)
        lead_elsewhere(file, places[0], kind, secret)
    if suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(inner, "model.weights.h5")
    model = model_of("keras/MobileNet")
    before = model.get_weights()
    with pytest.raises(
        InputError, match=rf"some{suffix} is not a file of weights.*(lies in another file|is a link)"
    ) as caught:
        load_backbone_weights(model, str(path))
    assert "\n" not in str(caught.value)
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)


def test_an_npz_that_holds_pickles_is_refused(small_networks, tmp_path):
    np.savez(tmp_path / "evil.npz", x=np.array([{"a": 1}], object))
    with pytest.raises(InputError, match="not a file of weights"):
        load_backbone_weights(model_of("resnet50"), str(tmp_path / "evil.npz"))
