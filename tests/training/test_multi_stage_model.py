"""Keras' fit in stages is Keras' fit of the model inside."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.cases import slow
from tfrank import metrics
from tfrank.common.checks import InputError
from tfrank.training.multi_stage_model import MultiStageModel

# Batches of 10, 10 and 4; the micro-batches of a batch of 10 have 4, 4 and 2 images.
BATCH, MICRO_BATCH = 10, 4
IMAGES = np.random.default_rng(0).integers(0, 256, (24, 3, 3, 3)).astype("uint8")
FLOATS = IMAGES.astype("float32")
LABELS = np.random.default_rng(1).integers(0, 6, 24)
WEIGHTS = np.random.default_rng(2).uniform(0.1, 3, 24)


def network(*extra, outputs=1, regularizer=None):
    """A small network with `extra` layers in it, the same weights every time. Its batch norm is frozen."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    pixels = keras.Input([3, 3, 3])
    x = layers.Flatten()(layers.Rescaling(1 / 255)(pixels))
    x = layers.Dense(8, kernel_regularizer=regularizer)(x)
    batch_norm = layers.BatchNormalization()
    batch_norm.trainable = False
    x = layers.Activation("tanh")(batch_norm(x))
    for layer in extra:
        x = layer(x)
    embeddings = [layers.Dense(5, name=f"output_{k}")(x) for k in range(outputs)]
    return keras.Model(pixels, embeddings if outputs > 1 else embeddings[0])


def smooth_ap(temperature=0.1):
    return tfrank.SmoothAPLoss(temperature)


def compiled(model, loss=None, optimizer=None, **options):
    optimizer = optimizer or keras.optimizers.SGD(0.2, momentum=0.5)
    model.compile(optimizer, loss=loss or smooth_ap(), **options)
    return model


def fit(model, images=FLOATS, labels=LABELS, epochs=2, **options):
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    return model.fit(images, labels, epochs=epochs, **options).history


def in_stages(model, micro_batch_size=MICRO_BATCH):
    return MultiStageModel(model, micro_batch_size=micro_batch_size)


def values(model):
    return [variable.numpy() for variable in model.variables]


def assert_same(one, other, tolerance):
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=tolerance)


def assert_same_history(one, other, tolerance=1e-6):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=tolerance, err_msg=name)


def with_metrics():
    """What `compile` takes; new metrics each time."""
    some, weighted = ([metrics.BatchRecallAt1(), metrics.PositiveSimilarity()] for _ in range(2))
    return {"metrics": some, "weighted_metrics": weighted}


@pytest.mark.parametrize(
    "of_network, of_compile, of_fit",
    [
        slow({}, {}, {}),
        ({"regularizer": keras.regularizers.L2(0.05)}, {}, {"sample_weight": WEIGHTS}),
        slow({"regularizer": keras.regularizers.L2(0.05)}, {"jit_compile": True}, {"sample_weight": WEIGHTS}),
        slow({}, {"run_eagerly": True}, {"epochs": 1}),
        slow({}, {"steps_per_execution": 2}, {}),
    ],
    ids=["as usual", "weighted", "weighted, compiled", "eager", "several steps at once"],
)
def test_fit_is_that_of_the_model_inside(of_network, of_compile, of_fit):
    plain, inside = network(**of_network), network(**of_network)
    wanted = fit(compiled(plain, **with_metrics(), **of_compile), **of_fit)
    history = fit(compiled(in_stages(inside), **with_metrics(), **of_compile), **of_fit)
    assert_same_history(history, wanted)
    assert len(history) == 5
    assert_same(values(inside), values(plain), 1e-6)
    assert np.abs(plain.get_weights()[0] - network(**of_network).get_weights()[0]).max() > 1e-2


@pytest.mark.slow
def test_several_outputs_may_have_a_loss_each():
    options = {"loss": [smooth_ap(), tfrank.PNPLoss("o", temperature=0.1)], "loss_weights": [1.0, 0.5]}
    plain, inside = network(outputs=2), network(outputs=2)
    wanted = fit(compiled(plain, **options), labels=[LABELS, LABELS // 2])
    history = fit(compiled(in_stages(inside), **options), labels=[LABELS, LABELS // 2])
    np.testing.assert_allclose(history["loss"], wanted["loss"], rtol=1e-6)
    # Each loss by itself, too.
    assert len(history) == 3
    np.testing.assert_allclose(sorted(history.values()), sorted(wanted.values()), rtol=1e-6)
    assert_same(values(inside), values(plain), 1e-6)


@pytest.mark.slow
def test_sample_weights_and_regularisers_change_what_is_learnt():
    """So that the comparisons above are of something."""
    plain = compiled(network())
    history = fit(plain)
    for of_network, of_fit in (
        ({"regularizer": keras.regularizers.L2(0.05)}, {}),
        ({}, {"sample_weight": WEIGHTS}),
    ):
        inside = network(**of_network)
        other = fit(compiled(in_stages(inside)), **of_fit)
        assert abs(other["loss"][1] - history["loss"][1]) > 1e-3
        assert np.abs(inside.get_weights()[0] - plain.get_weights()[0]).max() > 1e-3


def test_images_may_be_bytes():
    runs = []
    for images in (IMAGES, FLOATS):
        inside = network()
        runs.append((fit(compiled(in_stages(inside)), images)["loss"], values(inside)))
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1], 0)


@pytest.mark.parametrize("xla", [False, slow(True)])
@pytest.mark.parametrize("layer", ["Dropout", "BatchNormalization"])
def test_what_is_random_or_has_a_state_is_replayed(layer, xla):
    """Against one tape over the same micro-batches, whose activations it holds all at once."""

    def make():
        batch_norm = keras.layers.BatchNormalization(momentum=0.5)
        return network(keras.layers.Dropout(0.4, seed=3) if layer == "Dropout" else batch_norm)

    model, optimizer = make(), keras.optimizers.SGD(0.5)
    embed = tf.function(lambda images: model(images, training=True), jit_compile=xla, reduce_retracing=False)
    losses = []
    for start in (0, 10, 20) * 2:
        with tf.GradientTape() as tape:
            stops = range(start, min(start + BATCH, 24), MICRO_BATCH)
            parts = [embed(FLOATS[k : min(k + MICRO_BATCH, start + BATCH)]) for k in stops]
            loss = smooth_ap()(LABELS[start : start + BATCH], tf.concat(parts, axis=0))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        losses.append(float(loss))
    inside = make()
    staged = compiled(in_stages(inside), optimizer=keras.optimizers.SGD(0.5), jit_compile=xla)
    history = fit(staged)
    assert_same(values(inside), values(model), 1e-6)
    epochs = np.average(np.reshape(losses, [2, 3]), axis=1, weights=[10, 10, 4])
    np.testing.assert_allclose(history["loss"], epochs, rtol=1e-6)


def test_a_model_of_which_nothing_is_trained_is_warned_of_as_keras_does():
    inside = network()
    inside.trainable = False
    before = values(inside)
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        fit(compiled(in_stages(inside)))
    assert_same(values(inside), before, 0)


@pytest.fixture
def mixed_float16():
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


def test_mixed_precision_scales_the_loss_by_itself_and_once(mixed_float16):
    runs = []
    for wrap in (lambda model: model, in_stages):
        inside = network()
        model = compiled(wrap(inside))
        history = fit(model)
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        runs.append((history["loss"], np.concatenate([v.ravel() for v in inside.get_weights()])))
    start = np.concatenate([v.ravel() for v in network().get_weights()])
    (plain_losses, plain), (losses, staged) = runs
    np.testing.assert_allclose(losses, plain_losses, rtol=2e-3)
    assert np.linalg.norm(staged - plain) < 5e-3 * np.linalg.norm(plain - start)
    assert np.linalg.norm(plain - start) > 0.1


def test_evaluate_and_predict_are_those_of_the_model_inside():
    inside = network(keras.layers.Dropout(0.5))
    model, plain = (
        compiled(m, metrics=[metrics.BatchRecallAt1()], weighted_metrics=[])
        for m in (in_stages(inside), inside)
    )
    options = {"batch_size": BATCH, "verbose": 0, "return_dict": True}
    evaluated = model.evaluate(FLOATS, LABELS, **options)
    assert evaluated == pytest.approx(plain.evaluate(FLOATS, LABELS, **options), rel=1e-6)
    np.testing.assert_array_equal(model.evaluate(IMAGES, LABELS, **options)["loss"], evaluated["loss"])
    for images in (IMAGES, FLOATS):
        np.testing.assert_array_equal(model.predict(images, verbose=0), plain.predict(FLOATS, verbose=0))


def test_validation_in_fit_is_an_evaluation():
    model = compiled(in_stages(network()))
    history = fit(model, epochs=1, validation_data=(IMAGES, LABELS), validation_batch_size=BATCH)
    evaluated = model.evaluate(IMAGES, LABELS, batch_size=BATCH, verbose=0)
    assert history["val_loss"] == pytest.approx([evaluated], rel=1e-6)


def test_a_saved_model_gives_the_same_embeddings_bit_for_bit(tmp_path):
    model = compiled(in_stages(network(keras.layers.Dropout(0.4, seed=3))))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, MultiStageModel) and loaded.micro_batch_size == MICRO_BATCH
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), loaded.predict(IMAGES, verbose=0))


@pytest.mark.parametrize("micro_batch_size", [0, -4, 2.5, "4", None])
def test_a_bad_micro_batch_size_is_refused(micro_batch_size):
    with pytest.raises(InputError, match=r"argument `micro_batch_size`\. Expected an integer of at least 1"):
        in_stages(network(), micro_batch_size)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_loss_of_activations_is_refused_by_fit_in_one_message(jit_compile):
    model = compiled(in_stages(network(keras.layers.ActivityRegularization(0.1))), jit_compile=jit_compile)
    with pytest.raises(InputError) as refused:
        fit(model)
    assert str(refused.value).startswith("A layer adds a loss of its activations")
    assert str(refused.value).endswith("Remove it, or train without both.")


@pytest.mark.parametrize("jit_compile", ["auto", slow(True)])
@pytest.mark.filterwarnings("error:.*:UserWarning")
def test_a_saved_model_goes_on_bit_for_bit(jit_compile, tmp_path):
    model = compiled(in_stages(network()), jit_compile=jit_compile)
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations)
    assert loaded.get_compile_config()["jit_compile"] == jit_compile
    fit(model, epochs=1)
    fit(loaded, epochs=1)
    assert_same(values(model), values(loaded), 0)


def test_weights_may_be_saved_and_loaded_by_themselves(tmp_path):
    model = compiled(in_stages(network()))
    fit(model, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup")])
    model.save_weights(tmp_path / "model.weights.h5")
    other = in_stages(network())
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same(values(model), values(other), 0)
    assert model.count_params() == network().count_params()


@pytest.mark.parametrize("by_name", [slow(False), True])
def test_losses_and_logs_go_by_the_names_of_the_outputs(by_name):
    loss, labels = [smooth_ap(), smooth_ap(1.0)], [LABELS, LABELS // 2]
    if by_name:
        loss, labels = ({f"output_{k}": one for k, one in enumerate(both)} for both in (loss, labels))
    plain, inside = network(outputs=2), network(outputs=2)
    wanted = fit(compiled(plain, loss=loss), labels=labels)
    assert_same_history(fit(compiled(in_stages(inside), loss=loss), labels=labels), wanted)
    assert_same(values(inside), values(plain), 1e-6)


IDS = np.int64(2**24) + 1 + np.arange(24)
TEXTS = [f"photo of {label}" for label in LABELS]


def of_ids():
    """Embeds integers, which differ by one beyond 2^24."""
    ids = keras.Input([], dtype="int64")
    return keras.Model(ids, keras.layers.Embedding(30, 5)(ids - int(IDS[0])))


def of_texts():
    texts = keras.Input([], dtype="string")
    words = keras.layers.TextVectorization(vocabulary=["photo", "of", *map(str, range(6))])(texts)
    return keras.Model(texts, keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(30, 5)(words)))


def of_a_dict():
    inputs = {
        "pixels": keras.Input([3, 3, 3], name="pixels"),
        "id": keras.Input([], dtype="int64", name="id"),
    }
    pixels = keras.layers.Dense(5)(keras.layers.Flatten()(inputs["pixels"]) / 255)
    return keras.Model(inputs, pixels + keras.layers.Embedding(30, 5)(inputs["id"] - int(IDS[0])))


class OfAList(keras.Model):
    """A class of its own, with two inputs."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(5)

    def call(self, inputs):
        assert inputs[1].dtype == tf.int64
        return self.dense(inputs[0] / 255) + tf.cast(inputs[1] - IDS[0], tf.float32)[:, None]


def of_a_list():
    model = OfAList()
    model([FLAT[:2], IDS[:2]])
    return model


FLAT = FLOATS.reshape(24, 27)
INPUTS = {
    "ids above 2^24": (of_ids, IDS),
    "texts": (of_texts, TEXTS),
    "a dict": (of_a_dict, {"pixels": IMAGES, "id": IDS}),
    "a list": (of_a_list, [FLAT, IDS]),
}


@pytest.mark.parametrize("form", ["arrays", slow("tf.data")])
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_reach_the_model_inside_unchanged(kind, form):
    build, inputs = INPUTS[kind]
    inputs = tf.constant(inputs) if kind == "texts" else inputs
    runs = []
    for wrap in (lambda model: model, in_stages):
        keras.utils.set_random_seed(0)
        inside = build()
        data, options = (inputs, LABELS), {}
        if form == "tf.data":
            inputs = tuple(inputs) if isinstance(inputs, list) else inputs
            data, options = (
                (tf.data.Dataset.from_tensor_slices((inputs, LABELS)).batch(BATCH), None),
                {"batch_size": None},
            )
        model = compiled(wrap(inside))
        runs.append((fit(model, *data, **options), values(inside), model.predict(inputs, verbose=0)))
    assert_same_history(*[run[0] for run in runs])
    assert_same(runs[0][1], runs[1][1], 1e-6)
    np.testing.assert_allclose(runs[0][2], runs[1][2], atol=1e-5)


def test_floats_of_another_precision_reach_the_model_inside_unchanged(mixed_float16):
    numbers = keras.Input([1], dtype="float64")
    inside = keras.Model(numbers, keras.layers.Rescaling(1e-5, dtype="float64")(numbers))
    many = np.array([[1e5], [2049.0], [1700000000.123]])
    found = MultiStageModel(inside, micro_batch_size=2).predict(many, verbose=0)
    np.testing.assert_array_equal(found, inside.predict(many, verbose=0))


def test_a_model_inside_that_is_not_built_is_refused():
    inside = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(4)])
    with pytest.raises(InputError, match=r"`model`\. Expected a built one"):
        in_stages(inside)
