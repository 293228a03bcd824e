"""Preprocessing by hand, and what the embedding model promises."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow
from tfrank.common.checks import InputError
from tfrank.models.embedding import concatenate_embeddings, embedding_model, resolve_options
from tfrank.models.pooling import MODES as POOLINGS
from tfrank.models.preprocessing import MODES, preprocess

IMAGES = np.random.default_rng(0).uniform(0, 255, [3, 10, 10, 3]).astype("float32")


def small_model(**options):
    keras.utils.set_random_seed(0)
    settings = {"image_size": 10, "preprocessing": "rgb", "blocks": 2, "filters": 4, "embedding_dim": 5}
    return embedding_model(**{**settings, **options})


@pytest.fixture
def mixed_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
    "mode, wanted",
    [
        ("rgb", [[0, 0, 0], [1, 1, 1], [0.2, 0.4, 0.6], [1, 0, 0]]),
        ("grey", [[0], [1], [0.4], [1 / 3]]),
        ("inverted_grey", [[1], [0], [0.6], [2 / 3]]),
        ("raw", [[0, 0, 0], [255, 255, 255], [51, 102, 153], [255, 0, 0]]),
        ("signed_rgb", [[-1, -1, -1], [1, 1, 1], [-0.6, -0.2, 0.2], [1, -1, -1]]),
        (
            "imagenet_rgb",
            [
                [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225],
                [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225],
                [-0.285 / 0.229, -0.056 / 0.224, 0.194 / 0.225],
                [0.515 / 0.229, -0.456 / 0.224, -0.406 / 0.225],
            ],
        ),
        (
            "caffe_bgr",
            [
                [-103.939, -116.779, -123.68],
                [151.061, 138.221, 131.32],
                [49.061, -14.779, -72.68],
                [-103.939, -116.779, 131.32],
            ],
        ),
        ("inception_bgr", [[-104, -117, -128], [151, 138, 127], [49, -15, -77], [-104, -117, 127]]),
    ],
)
def test_preprocessing_scales_black_white_and_colors(mode, wanted):
    pixels = np.array([[[[0, 0, 0], [255, 255, 255], [51, 102, 153], [255, 0, 0]]]], "float32")
    np.testing.assert_allclose(preprocess(pixels, mode), [[wanted]], rtol=1e-6, atol=1e-6)


def test_an_unknown_preprocessing_is_refused():
    with pytest.raises(InputError, match=r'argument `preprocessing`\. .*Did you mean "grey"\?'):
        small_model(preprocessing="gray")


@pytest.mark.parametrize("preprocessing", MODES)
def test_embeddings_are_float32_of_the_dimension_asked(preprocessing):
    model = small_model(preprocessing=preprocessing)
    embeddings = model(IMAGES)
    assert embeddings.shape == (3, 5) and embeddings.dtype == "float32"
    assert model.output_shape == (None, 5) and model.input_shape == (None, 10, 10, 3)


def test_embeddings_are_float32_under_mixed_precision_too(mixed_precision):
    model = small_model()
    embeddings = model(IMAGES)
    assert embeddings.dtype == "float32"
    convolution = next(layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D))
    assert convolution.compute_dtype == "bfloat16"
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


def test_batch_norm_is_pytorchs_and_over_the_global_batch():
    norms = [layer for layer in small_model().layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert [(n.momentum, n.epsilon, n.synchronized) for n in norms] == [(0.9, 1e-5, True)] * 2


def test_borders_count_where_a_size_does_not_halve():
    """10 pixels halve to 5, and then to 3: the last row and column are seen."""
    changed = IMAGES.copy()
    changed[:, -1, -1] = 255 - changed[:, -1, -1]
    model = small_model()
    assert np.all(np.abs(model(IMAGES) - model(changed)).max(axis=1) > 1e-6)
    assert model.get_layer("embedding").kernel.shape == (3 * 3 * 4, 5)


def test_same_seed_gives_the_same_weights():
    for one, other in zip(small_model().get_weights(), small_model().get_weights()):
        np.testing.assert_array_equal(one, other)


def test_a_saved_model_gives_the_same_embeddings(tmp_path):
    model = small_model(preprocessing="inverted_grey")
    model(IMAGES, training=True)  # Moves the statistics of batch norm away from where they begin.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IMAGES), model(IMAGES))


@functools.cache
def levels_model(levels="LMH", **options):
    """Building takes a second or two, so tests share them."""
    keras.utils.set_random_seed(0)
    settings = {"image_size": 64, "backbone": "bn_inception", "levels": levels, "embedding_dim": 6}
    return embedding_model(**{**settings, **options})


PICTURES = np.random.default_rng(0).uniform(0, 255, [2, 64, 64, 3]).astype("float32")


def test_the_convnet_is_what_it_was():
    """Five layers a block and one after, and the sizes that its runs were published with."""
    model = embedding_model(image_size=28, embedding_dim=64)
    assert model.count_params() == 3 * 9 * 64 + 3 * 64 * 9 * 64 + 4 * 4 * 64 + (2 * 2 * 64 + 1) * 64
    assert [type(layer).__name__ for layer in model.layers][-6:] == [
        "Conv2D",
        "BatchNormalization",
        "ReLU",
        "MaxPooling2D",
        "Flatten",
        "Dense",
    ]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_ends_in_an_embedding(pooling):
    model = small_model(pooling=pooling, batch_norm="frozen")
    assert model(IMAGES).shape == (3, 5)
    rows = model.get_layer("embedding").kernel.shape[0]
    assert rows == (3 * 3 * 4 if pooling == "flatten" else 4)


@pytest.mark.parametrize("levels", ["LMH", "HL", "ML"])
def test_levels_give_embeddings_in_the_order_asked(levels):
    model = levels_model(levels)
    names = {"L": "embedding_low", "M": "embedding_middle", "H": "embedding_high"}
    assert [output._keras_history.operation.name for output in model.outputs] == [
        names[level] for level in levels
    ]
    embeddings = model(PICTURES)
    assert [tuple(each.shape) for each in embeddings] == [(2, 6)] * len(levels)
    assert {each.dtype for each in embeddings} == {tf.float32}


@pytest.mark.parametrize("level, width", [("L", 1024), ("M", 1024), ("H", 1024)])
def test_one_level_gives_one_embedding(level, width):
    model = levels_model(level)
    assert model(PICTURES).shape == (2, 6)
    head = next(layer for layer in model.layers if layer.name.startswith("embedding_"))
    assert head.kernel.shape == (width, 6)


@pytest.mark.parametrize("levels", ["LMH", "ML", "L"])
def test_every_trainable_variable_of_a_model_with_levels_has_a_gradient(levels):
    """What only a deeper level would need is left out."""
    model = levels_model(levels)
    with tf.GradientTape() as tape:
        value = sum(
            tf.reduce_sum(tf.square(each)) for each in tf.nest.flatten(model(PICTURES, training=True))
        )
    gradients = tape.gradient(value, [variable.value for variable in model.trainable_variables])
    assert all(gradient is not None for gradient in gradients)


def test_levels_see_different_depths_of_one_network():
    """The embedding of a level alone is the one that it has beside the others."""
    together = levels_model("LMH")
    backbone = together.get_layer("bn_inception")
    for level, embedding in zip("LMH", together(PICTURES)):
        alone = levels_model(level)
        for variable in alone.variables:
            same = next(each for each in together.variables if each.path == variable.path)
            variable.assign(same)
        np.testing.assert_allclose(alone(PICTURES), embedding, rtol=1e-4, atol=1e-4)
    shapes = [shape[1:] for shape in backbone.output_shape]
    assert shapes == [(4, 4, 576), (2, 2, 1056), (2, 2, 1024)]


def test_the_heads_are_the_auxiliary_branches():
    """At 224 the pooling leaves 4 by 4 of 14 by 14, and 2 by 2 of 7 by 7, as in GoogLeNet V2."""
    model = levels_model("LMH", image_size=224)
    shapes = {variable.path: tuple(variable.shape) for variable in model.variables}
    assert shapes["low_head_conv/kernel"] == (1, 1, 576, 128)
    assert shapes["middle_head_conv/kernel"] == (1, 1, 1056, 128)
    assert shapes["low_head_fc/kernel"] == (4 * 4 * 128, 1024)
    assert shapes["middle_head_fc/kernel"] == (2 * 2 * 128, 1024)
    assert "low_head_fc_bn/gamma" not in shapes and "low_head_fc/bias" in shapes
    trained = {variable.path for variable in levels_model("L", batch_norm="trained").trainable_variables}
    assert "low_head_fc_bn/gamma" in trained and "low_head_fc/bias" not in trained


@pytest.mark.parametrize("levels", [slow("ML"), "H"])
def test_concatenated_is_the_normalized_levels_side_by_side_after_saving_too(levels, tmp_path):
    model = levels_model(levels)
    joined = concatenate_embeddings(model)
    embeddings = tf.nest.flatten(model(PICTURES))
    if len(levels) == 1:
        assert joined is model
        return
    wanted = np.concatenate([e / np.linalg.norm(e, axis=1, keepdims=True) for e in embeddings], axis=1)
    np.testing.assert_allclose(joined(PICTURES), wanted, rtol=1e-5, atol=1e-6)
    assert joined.output_shape == (None, 6 * len(levels)) and joined(PICTURES).dtype == tf.float32
    assert {id(v) for v in joined.variables} == {id(v) for v in model.variables}
    joined.save(tmp_path / "joined.keras")
    loaded = keras.models.load_model(tmp_path / "joined.keras")
    np.testing.assert_array_equal(loaded(PICTURES), joined(PICTURES))
    archive = keras.export.ExportArchive()
    archive.track(joined)
    signature = [tf.TensorSpec([None, 64, 64, 3], tf.float32)]
    archive.add_endpoint("serve", lambda images: joined(images, training=False), input_signature=signature)
    archive.write_out(tmp_path / "saved", verbose=False)
    exported = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(exported.serve(PICTURES), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, slow({"levels": "LM"}), {"pooling": "gem"}, {"pooling": "rmac"}])
def test_embeddings_of_a_backbone_are_float32_under_mixed_precision(options, mixed_precision):
    model = levels_model.__wrapped__(**{"levels": "", **options})
    assert {each.dtype for each in tf.nest.flatten(model(PICTURES))} == {tf.float32}
    assert model.get_layer("bn_inception").layers[5].compute_dtype == "bfloat16"
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


@pytest.mark.parametrize(
    "backbone", [pytest.param("resnet50", marks=pytest.mark.slow), "keras/MobileNetV3Small"]
)
def test_a_backbone_of_the_same_seed_has_the_same_weights_and_survives_saving(backbone, tmp_path):
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        models.append(embedding_model(image_size=32, backbone=backbone, embedding_dim=4, pooling="gem"))
    assert [v.path for v in models[0].variables] == [v.path for v in models[1].variables]
    for one, other in zip(*(model.get_weights() for model in models)):
        np.testing.assert_array_equal(one, other)
    models[0].save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    images = PICTURES[:, :32, :32]
    np.testing.assert_allclose(loaded(images), models[0](images), rtol=1e-5, atol=1e-5)
    assert len(loaded.trainable_variables) == len(models[0].trainable_variables)


def test_a_frozen_backbone_stays_frozen_when_its_model_is_made_trainable_again():
    model = embedding_model(image_size=32, backbone="resnet50", embedding_dim=4)
    names = {variable.path.split("/")[-1] for variable in model.trainable_variables}
    before = model.get_layer("resnet50").get_weights()
    model.trainable = False
    model.trainable = True
    assert (
        {variable.path.split("/")[-1] for variable in model.trainable_variables}
        == names
        == {"kernel", "bias"}
    )
    images = PICTURES[:, :32, :32]
    np.testing.assert_allclose(model(images, training=True), model(images, training=False), rtol=1e-5)
    for one, other in zip(before, model.get_layer("resnet50").get_weights()):
        np.testing.assert_array_equal(one, other)


def test_auto_is_what_the_backbone_expects():
    assert resolve_options(backbone="convnet") == {
        "preprocessing": "rgb",
        "pooling": "flatten",
        "batch_norm": "trained",
    }
    assert resolve_options(backbone="bn_inception", levels="LMH", batch_norm="trained") == {
        "preprocessing": "inception_bgr",
        "pooling": "average",
        "batch_norm": "trained",
    }
    assert resolve_options(backbone="keras/VGG16", preprocessing="raw", pooling="gem") == {
        "preprocessing": "raw",
        "pooling": "gem",
        "batch_norm": "frozen",
    }


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(backbone="resnet50", preprocessing="grey"), "`preprocessing`.*colours.*resnet50"),
        (dict(backbone="keras/VGG16", preprocessing="inverted_grey"), "`preprocessing`.*colours"),
        (dict(backbone="resnet50", levels="LMH"), "`levels`.*only bn_inception"),
        (dict(backbone="bn_inception", levels="LX"), "`levels`.*different letters of 'LMH'"),
        (dict(backbone="bn_inception", levels="LL"), "`levels`.*different letters of 'LMH'"),
        (dict(backbone="bn_inception", levels=("L", "M")), "`levels`.*different letters of 'LMH'"),
        (dict(backbone="bn_inception", levels="LM", pooling="gem"), "`pooling`.*without 'H'"),
        (dict(backbone="resnet50", pooling="avg"), "`pooling`.*'average'"),
        (dict(backbone="resnet50", batch_norm="freeze"), '`batch_norm`.*Did you mean "frozen"'),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        embedding_model(image_size=64, embedding_dim=4, **options)
