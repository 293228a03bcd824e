"""Vision transformers of keras-hub: sizes, tokens, weights from folders, layer-wise learning rates."""

import importlib
import json
import struct

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow, slow_but
from tfrank.common.checks import InputError
from tfrank.models import blocks, hub, hub_sizes, safetensors_files
from tfrank.models.embedding import embedding_model
from tfrank.models.weights import check_exists, load_backbone_weights
from tfrank.training.optimizers import build_optimizer
from tfrank.training.step import multi_stage_gradients

pytest.importorskip("keras_hub")
DIMS = {"hidden_dim": 8, "num_layers": 2, "num_heads": 2}
DINO = {"patch_size": 14, "intermediate_dim": 16, "num_register_tokens": 4, **DIMS}
TOWER = {"patch_size": 14, "intermediate_dim": 16, **DIMS}
TINY = {
    "tiny_vit": ("vit", {"patch_size": 14, "mlp_dim": 16, **DIMS}),
    "tiny_deit": ("deit", {"patch_size": 14, "intermediate_dim": 16, **DIMS}),
    "tiny_swin": (
        "swin",
        {
            **{"patch_size": 2, "embed_dim": 4, "depths": (1, 1), "num_heads": (2, 2), "window_size": 7},
            "drop_path": 0.0,
        },
    ),
    "tiny_dinov2": ("dinov2", {**DINO, "position_embedding_shape": (56, 56, 3)}),
    "tiny_dinov3": ("dinov3", DINO),
    "tiny_clip": ("clip", {**TOWER, "intermediate_activation": "quick_gelu"}),
    "tiny_siglip": ("siglip", {**TOWER, "intermediate_activation": "gelu_approximate"}),
}
IMAGES = np.random.default_rng(0).uniform(0, 255, (2, 56, 56, 3)).astype("float32")
every_tiny = pytest.mark.parametrize("size", TINY)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Sizes that are built at once."""
    for name, size in TINY.items():
        monkeypatch.setitem(hub_sizes.SIZES, name, size)
    names = tuple(f"hub/{name}" for name in hub_sizes.SIZES)
    for module in ("backbones", "embedding", "weights", "hub_sizes"):
        monkeypatch.setattr(f"tfrank.models.{module}.HUB", names)
    monkeypatch.setattr("tfrank.models.embedding.BACKBONES", ("convnet", *names))
    monkeypatch.setattr("tfrank.models.backbones.BACKBONES", ("convnet", *names))


def saved_preset(size, folder, image_size=56, seed=1):
    """A Keras preset of a network of random weights; returns those."""
    keras.utils.set_random_seed(seed)
    name, arguments = hub_sizes.SIZES[size]
    network = hub._class_of(name)(image_shape=(image_size, image_size, 3), **arguments)
    network.save_to_preset(str(folder))
    return [weight.numpy() for weight in network.weights]


@every_tiny
def test_a_network_gives_a_map_of_the_patches_and_the_class_token_if_it_has_one(size):
    network = hub.hub_network(size, image_size=56)
    found = network(IMAGES)
    patches, *token = found if isinstance(found, list) else [found]
    side = 14 if size == "tiny_swin" else 4
    assert patches.shape[:3] == (2, side, side) and len(token) == (size != "tiny_swin")
    assert all(one.shape == (2, patches.shape[-1]) for one in token)


@pytest.mark.parametrize("size", slow_but(("tiny_vit", "tiny_swin"), TINY))
def test_poolings_of_tokens(size):
    def embeddings(pooling):
        keras.utils.set_random_seed(0)
        options = {"image_size": 56, "backbone": f"hub/{size}", "head": "none", "embedding_dim": 1}
        return np.array(embedding_model(pooling=pooling, **options)(IMAGES))

    average, gem = embeddings("average"), embeddings("gem")
    assert average.shape == gem.shape and not np.allclose(average, gem)
    if size == "tiny_swin":
        np.testing.assert_array_equal(embeddings("auto"), average)
        with pytest.raises(InputError, match="pooling"):
            embeddings("class_token")
    else:
        token = embeddings("class_token")
        np.testing.assert_array_equal(embeddings("auto"), token)
        both = np.concatenate([token, average], axis=1)
        np.testing.assert_allclose(embeddings("class_token_average"), both, atol=1e-6)


@pytest.mark.parametrize("size", [size for size in TINY if TINY[size][0] not in hub_sizes.TOWERS])
def test_the_weights_of_a_keras_preset_are_loaded_all_of_them(size, tmp_path):
    wanted = saved_preset(size, tmp_path / "preset")
    keras.utils.set_random_seed(2)
    model = embedding_model(image_size=56, backbone=f"hub/{size}", embedding_dim=4)
    check_exists(str(tmp_path / "preset"), f"hub/{size}")
    load_backbone_weights(model, str(tmp_path / "preset"))
    for weight, values in zip(model.get_layer(size).weights, wanted, strict=True):
        np.testing.assert_array_equal(weight.numpy(), values)


@pytest.mark.parametrize("size, prefix", [("tiny_clip", 1), ("tiny_siglip", 0)])
@pytest.mark.parametrize("image_size", [56, 84])
def test_of_a_preset_of_two_towers_that_of_images_is_loaded(size, prefix, image_size, monkeypatch, tmp_path):
    models = importlib.import_module("keras_hub").models
    family, arguments = hub_sizes.SIZES[size]
    name = {"clip": "CLIP", "siglip": "SigLIP"}[family]
    tower = hub._class_of(family)(image_shape=(56, 56, 3), **arguments)
    text = {"vocabulary_size": 9, "embedding_dim": 8, "hidden_dim": 8, "num_layers": 1, "num_heads": 2}
    text |= {"intermediate_dim": 16} | (
        {"max_sequence_length": 4} if name == "CLIP" else {"projection_dim": 8}
    )
    text |= {"max_sequence_length": 4}
    encoder = getattr(models, f"{name}TextEncoder")(**text)
    options = {"projection_dim": 8} if name == "CLIP" else {}
    getattr(models, f"{name}Backbone")(tower, encoder, **options).save_to_preset(str(tmp_path))
    network = hub.hub_network(size, image_size=image_size)
    hub.load_hub_weights(network, str(tmp_path))
    for found, wanted in zip(network.weights, tower.weights, strict=True):
        if "position_ids" in found.path:
            np.testing.assert_array_equal(found[0], np.arange((image_size // 14) ** 2 + prefix))
        elif "position" not in found.path or image_size == 56:
            np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    monkeypatch.setitem(hub_sizes.SIZES, size, (family, {**arguments, "intermediate_activation": "relu"}))
    with pytest.raises(InputError, match=r"activation .* the backbone 'relu'"):
        hub.load_hub_weights(network, str(tmp_path))


def test_positions_of_another_image_size_are_interpolated(tmp_path):
    wanted = saved_preset("tiny_vit", tmp_path / "preset", image_size=112)
    network = hub.hub_network("tiny_vit", image_size=56)
    hub.load_hub_weights(network, str(tmp_path / "preset"))
    (place,) = (n for n, one in enumerate(network.weights) if "position" in one.path)
    found, table = network.weights[place].numpy(), wanted[place]
    np.testing.assert_array_equal(found[0], table[0])
    np.testing.assert_allclose(found[1:], hub.resized_positions(table[1:], 16))


def test_interpolated_positions_keep_a_plane_and_a_constant():
    rows, columns = np.mgrid[:8, :8] + 0.5
    table = np.stack([rows, columns, np.ones([8, 8])], -1).reshape(64, 3)
    inner = hub.resized_positions(table, 16).reshape(4, 4, 3)[1:3, 1:3]
    np.testing.assert_allclose(inner[..., 0] * 0.5, [[1.5, 1.5], [2.5, 2.5]])
    np.testing.assert_allclose(inner[..., 1] * 0.5, [[1.5, 2.5], [1.5, 2.5]])
    np.testing.assert_allclose(inner[..., 2], 1)


def test_bad_input_is_named(tmp_path):
    saved_preset("tiny_vit", tmp_path / "vit")
    saved_preset("tiny_dinov3", tmp_path / "dinov3")
    (tmp_path / "empty").mkdir()
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "sharded").mkdir()
    (tmp_path / "sharded" / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "sharded" / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
    )
    network = hub.hub_network("tiny_vit", image_size=56)
    before = [weight.numpy() for weight in network.weights]
    for folder, message in (
        ("gone", "it has no config.json"),
        ("empty", "it has no config.json"),
        ("lost", "has no model.safetensors"),
        ("sharded", "has no model-00001-of-00002.safetensors"),
        ("dinov3", "cannot be read|do not fit hub/tiny_vit"),
    ):
        with pytest.raises(InputError, match=message) as error:
            hub.load_hub_weights(network, str(tmp_path / folder))
        assert "\n" not in str(error.value)
    for weight, values in zip(network.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), values)
    with pytest.raises(InputError, match="a multiple of the patch, 14, such as 28"):
        hub.hub_network("tiny_vit", image_size=32)
    with pytest.raises(InputError, match="images of one size only"):
        hub.hub_network("tiny_vit", image_size=None)


def test_a_size_of_another_width_is_refused(tmp_path):
    saved_preset("tiny_vit", tmp_path / "vit")
    hub_sizes.SIZES["tiny_vit"] = ("vit", {**hub_sizes.SIZES["tiny_vit"][1], "num_layers": 3})
    with pytest.raises(InputError, match=r"do not fit hub/tiny_vit; none were loaded: .* is missing"):
        hub.load_hub_weights(hub.hub_network("tiny_vit", image_size=56), str(tmp_path / "vit"))


@every_tiny
def test_learning_rates_fall_towards_the_input(size):
    network = hub.hub_network(size, image_size=56)
    found = blocks.layer_multipliers(network, 0.5)
    assert sorted(set(found.values())) == [0.125, 0.25, 0.5]
    of_path = {
        variable.path: [factor for part, factor in found.items() if part in variable.path]
        for variable in network.trainable_variables
    }
    assert all(len(factors) <= 1 for factors in of_path.values())
    first, *_ = of_path.values()
    assert first == [0.125]


@every_tiny
def test_the_head_and_each_block_have_learning_rates_of_their_own(size):
    """Some networks call the layer of the patches "embedding", as the head is called."""
    model = embedding_model(image_size=56, backbone=f"hub/{size}", embedding_dim=4)
    multipliers = {**blocks.layer_multipliers(model.get_layer(size), 0.5), "embedding": 10.0}
    optimizer = build_optimizer("sgd", learning_rate=1.0, multipliers=multipliers)
    optimizer.build(model.trainable_variables)
    rates = dict(zip((v.path for v in model.trainable_variables), optimizer._multiplier, strict=True))
    assert {path for path, rate in rates.items() if rate == 10} == {"embedding/kernel", "embedding/bias"}
    assert rates[model.trainable_variables[0].path] == 0.125
    decay = build_optimizer("adamw", learning_rate=1.0, decoupled=0.1, no_decay=["embedding"])
    decay.build(model.trainable_variables)
    assert decay._decay.count(0.0) == 2


def test_the_first_blocks_can_be_frozen():
    options = {"image_size": 56, "backbone": "hub/tiny_vit", "embedding_dim": 4}
    free, frozen = (embedding_model(**options, frozen_blocks=count) for count in (0, 1))
    fixed = {variable.path for variable in free.trainable_variables}
    fixed -= {variable.path for variable in frozen.trainable_variables}
    assert {path.split("/")[1] for path in fixed} == {"vit_patching_and_embedding", "vit_encoder"}
    assert all("block_1/" in path for path in fixed if path.startswith("tiny_vit/vit_encoder"))
    assert len(frozen.variables) == len(free.variables)
    with pytest.raises(InputError, match="frozen_blocks"):
        embedding_model(**options, frozen_blocks=3)
    with pytest.raises(InputError, match="frozen_blocks"):
        embedding_model(image_size=56, backbone="convnet", embedding_dim=4, frozen_blocks=1)


def gradients_of(network, images, micro_batch_size=0):
    def objective(outputs, penalties):
        value = tf.add_n([tf.reduce_sum(tf.sin(output)) for output in tf.nest.flatten(outputs)])
        return value, value

    @tf.function
    def compute():
        if micro_batch_size:
            return multi_stage_gradients(network, images, objective, micro_batch_size)
        with tf.GradientTape() as tape:
            outputs = network(images, training=True)
            value, _ = objective(outputs, [])
        variables = [variable.value for variable in network.trainable_variables]
        gradients = tape.gradient(value, variables, unconnected_gradients="zero")
        return value, outputs, [tf.convert_to_tensor(gradient) for gradient in gradients]

    return compute()


@pytest.mark.parametrize(
    "size, micro_batch_size, drop_path",
    [
        ("tiny_vit", 2, 0.0),
        ("tiny_dinov2", 0, 0.5),
        slow("tiny_vit", 0, 0.0),
        *(slow(size, 2, 0.0) for size in TINY if size != "tiny_vit"),
        *(slow(size, 0, 0.5) for size in ("tiny_swin", "tiny_clip")),
    ],
)
def test_recomputed_blocks_give_the_same_values_and_gradients(size, micro_batch_size, drop_path):
    options = {"backbone": f"hub/{size}", "embedding_dim": 4, "drop_path": drop_path}
    model = embedding_model(image_size=56, **options)
    images = tf.constant(np.concatenate([IMAGES, IMAGES[:, ::-1]]))
    before = [variable.numpy() for variable in model.non_trainable_variables]
    value, outputs, gradients = gradients_of(model, images)
    drawn = [variable.numpy() for variable in model.non_trainable_variables]
    for variable, state in zip(model.non_trainable_variables, before):
        variable.assign(state)
    calls, parts = [], blocks._blocks(model.get_layer(size))
    for block in parts:
        inner = block.call if drop_path else block
        inner.call = counted(inner.call, calls)
    blocks.recompute_blocks(model.get_layer(size))
    again = gradients_of(model, images, micro_batch_size)
    np.testing.assert_allclose(again[0], value, rtol=1e-5)
    np.testing.assert_allclose(again[1], outputs, atol=1e-5)
    for variable, one, other in zip(model.trainable_variables, again[2], gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max() + 1e-6, err_msg=variable.path)
    assert len(calls) >= 2 * len(parts), "traced forward, and once more for the gradient"
    for variable, state in zip(model.non_trainable_variables, drawn):
        np.testing.assert_array_equal(variable, state, err_msg="the next step draws others")


@every_tiny
def test_networks_have_no_dropout_whose_masks_a_recomputed_block_would_draw_anew(size):
    layers = hub.hub_network(size, image_size=56)._flatten_layers()
    rates = [layer.rate for layer in layers if hasattr(layer, "rate")]
    assert not any(rates)
    published = [arguments for family, arguments in hub_sizes.SIZES.values() if family == "swin"]
    assert {arguments["drop_path"] for arguments in published} == {0.0}, "Swin's own, whose default is not 0"


def counted(call, calls):
    def counting(*args, **kwargs):
        calls.append(call)
        return call(*args, **kwargs)

    return counting


@every_tiny
def test_blocks_are_left_out_at_random_in_training_alone_and_kept_on_average(size):
    keras.utils.set_random_seed(0)
    network = hub.hub_network(size, image_size=56)
    *_, block = parts = blocks._blocks(network)
    inputs, call = [], block.call
    block.call = lambda x, *args, **kwargs: inputs.append(x) or call(x, *args, **kwargs)
    network(IMAGES[:1] / 255)
    block.call = call
    x = tf.repeat(inputs[0], 100, axis=0)
    y = tokens_of(block(x, training=True)).numpy()
    layer = blocks.StochasticDepth(network, 0.4)
    assert len(layer.non_trainable_variables) == len(parts) == 2
    outputs = tokens_of(block(x, training=True)).numpy()
    left_out = np.all(outputs == x, axis=tuple(range(1, y.ndim)))
    assert 25 <= left_out.sum() <= 55
    np.testing.assert_allclose(outputs[~left_out], (x + (y - x) / 0.6)[~left_out], atol=1e-5)
    np.testing.assert_array_equal(tokens_of(block(x, training=False)), y)


def tokens_of(outputs):
    return outputs[0] if isinstance(outputs, tuple) else outputs


def test_blocks_left_out_are_the_same_in_both_stages_of_a_batch_in_stages():
    """The gradient with respect to the last block is zero for exactly the images that it was left out for."""
    keras.utils.set_random_seed(0)
    model = embedding_model(image_size=56, backbone="hub/tiny_dinov2", embedding_dim=4, drop_path=0.5)
    images = tf.constant(np.random.default_rng(0).uniform(0, 255, (6, 56, 56, 3)), tf.float32)
    before = [variable.numpy() for variable in model.non_trainable_variables]
    staged = gradients_of(model, images, 2)
    after = [variable.numpy() for variable in model.non_trainable_variables]
    assert any((one != other).any() for one, other in zip(before, after)), "the next step draws others"
    for variable, value in zip(model.non_trainable_variables, before):
        variable.assign(value)
    values, sums = [], [0.0] * len(model.trainable_variables)
    for start in (0, 2, 4):
        value, _, gradients = gradients_of(model, images[start : start + 2])
        values.append(value)
        sums = [total + gradient for total, gradient in zip(sums, gradients)]
    np.testing.assert_allclose(staged[0], sum(values), rtol=1e-5)
    for one, other in zip(staged[2], sums, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


def test_stochastic_depth_is_for_vision_transformers():
    with pytest.raises(InputError, match="drop_path"):
        embedding_model(image_size=56, backbone="convnet", embedding_dim=4, drop_path=0.1)
    with pytest.raises(InputError, match="drop_path"):
        embedding_model(image_size=56, backbone="hub/tiny_vit", embedding_dim=4, drop_path=1.0)


def test_safetensors_files_are_read_and_damaged_ones_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([7], np.int64)}

    def write(header, data):
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)

    data = tensors["a.weight"].tobytes() + tensors["b"].tobytes()
    good = {
        "__metadata__": {"format": "np"},
        "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
    }
    write(good, data)
    found = safetensors_files.read(str(path))
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        np.testing.assert_array_equal(found[name], values)
    safetensors_files.rename(str(path), str(tmp_path / "renamed"), "vit.")
    np.testing.assert_array_equal(safetensors_files.read(str(tmp_path / "renamed"))["vit.b"], [7])
    entry = good["a.weight"]
    for header in (
        {"a": {**entry, "data_offsets": [0, 23]}},
        {"a": {**entry, "data_offsets": [64, 88]}},
        {"a": {**entry, "data_offsets": [-24, 0]}},
        {"a": {**entry, "dtype": "F99"}},
        {"a": {"dtype": "F32"}},
        {"a": 7},
        [],
    ):
        write(header, data)
        with pytest.raises(InputError, match="is not a safetensors file, or is damaged"):
            safetensors_files.read(str(path))
    for content in (b"", b"\xff" * 20, struct.pack("<Q", 10**18) + b"{}"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="damaged"):
            safetensors_files.read(str(path))
