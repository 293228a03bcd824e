"""What users of `fit` see of an evaluation, and that training does not notice it."""

import csv
import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.cases import slow
from tests.programs import printed_json
from tfrank import callbacks
from tfrank.callbacks import RetrievalEvaluation
from tfrank.common.checks import InputError
from tfrank.configs import digits
from tfrank.evaluation.embed import embed
from tfrank.evaluation.protocols import TestSet
from tfrank.evaluation.ranking_results import leave_one_out
from tfrank.run import evaluation_results
from tfrank.run.embedding import embed_fn

RNG = np.random.default_rng(0)
# Eight classes of five. The first half of an image tells the class, the second is noise.
LABELS = np.arange(40) // 5
IMAGES = np.concatenate([np.eye(8)[LABELS], RNG.normal(size=[40, 8])], axis=1).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices


def small_model(loss=None, **options):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([keras.Input([16]), layers.Dense(8), layers.BatchNormalization()])
    model.add(layers.Dropout(0.5))
    model.add(layers.Dense(4))
    model.compile("adam", loss=loss or tfrank.PNPLoss("dq"), **options)
    return model


def fit(model, *others, epochs=1, **options):
    options = {"batch_size": 20, "verbose": 0, "callbacks": list(others), **options}
    return model.fit(IMAGES, LABELS, epochs=epochs, **options).history


def evaluate(model, evaluation):
    """What an evaluation logs, without a fit."""
    logs = {}
    evaluation.set_model(model)
    evaluation.on_train_begin()
    evaluation.on_epoch_end(0, logs)
    return logs


def by_hand(embeddings, labels=LABELS, ks=(1, 10)):
    embeddings = np.asarray(embeddings, np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    metrics = leave_one_out(embeddings, np.asarray(labels).ravel(), ks)
    return {f"val_{key}": metrics[key] for key in metrics if "queries" not in key}


def approximately(metrics):
    return pytest.approx(metrics, abs=1e-6)


def last(history):
    return {key: values[-1] for key, values in history.items() if key.startswith("val_")}


class Quality(keras.callbacks.Callback):
    """Makes the model as good as wanted, epoch for epoch: how much of the class its embeddings show."""

    def __init__(self, *qualities):
        super().__init__()
        self._qualities = qualities

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([diagonal(self._qualities[epoch])])


def diagonal(quality):
    return np.diag([quality] * 8 + [1.0] * 8).astype("float32")


def scripted_model(quality=1.0):
    model = keras.Sequential([keras.Input([16]), keras.layers.Dense(16, use_bias=False)])
    model.set_weights([diagonal(quality)])
    model.compile("sgd", loss=tfrank.PNPLoss("dq"))
    return model


def recalls(*qualities):
    return [by_hand(IMAGES @ diagonal(quality))["val_recall_at_1"] for quality in qualities]


DATA = {
    "arrays": lambda labels: (IMAGES, labels),
    "tensors": lambda labels: (tf.constant(IMAGES), tf.constant(labels)),
    "a column of labels": lambda labels: (IMAGES, labels[:, None]),
    "pairs": lambda labels: dataset((IMAGES, labels)).batch(7),
    "dicts": lambda labels: dataset({"image": IMAGES, "label": labels[:, None], "id": labels}).batch(7),
    "unknown shapes": lambda labels: tf.data.Dataset.from_generator(
        lambda: [(IMAGES, labels)], output_types=(tf.float32, labels.dtype)
    ),
}


@pytest.mark.parametrize("kind", DATA)
def test_the_numbers_are_those_of_leave_one_out_by_hand(kind):
    model = small_model()
    logs = evaluate(model, RetrievalEvaluation(DATA[kind](LABELS), batch_size=9))
    assert logs == approximately(by_hand(model.predict(IMAGES, verbose=0)))
    assert list(logs) == ["val_recall_at_1", "val_recall_at_10", "val_map"]


def test_the_numbers_are_bit_for_bit_those_of_the_mains():
    model = small_model()
    history = fit(model, RetrievalEvaluation((IMAGES, LABELS)))
    embeddings, labels = embed(embed_fn(model), [{"image": IMAGES, "label": LABELS}])
    nothing = np.full(40, "")
    test = TestSet(labels, np.arange(40).astype(str), nothing, np.full(40, -1))
    config = digits.get_config()
    config.evaluation.recall_at = (1, 10)
    metrics = (
        evaluation_results.evaluate_embeddings(config.evaluation, embeddings, test)
        .rankings["leave_one_out"]
        .metrics
    )
    assert last(history) == {key: metrics[key[4:]] for key in last(history)}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "uint64"])
@pytest.mark.parametrize("kind", ["arrays", "dicts"])
def test_labels_are_of_any_integer_dtype(dtype, kind):
    logs = evaluate(scripted_model(), RetrievalEvaluation(DATA[kind](LABELS.astype(dtype))))
    assert logs == evaluate(scripted_model(), RetrievalEvaluation((IMAGES, LABELS)))


@pytest.mark.parametrize("kind", ["arrays", "pairs"])
def test_labels_that_are_equal_as_floats_are_different_classes(kind):
    model = scripted_model(quality=100.0)
    logs = evaluate(model, RetrievalEvaluation(DATA[kind](LABELS + 2**60), prefix=""))
    assert logs == {"recall_at_1": 1.0, "recall_at_10": 1.0, "map": 1.0}


def test_ks_prefix_and_the_search_are_the_users():
    pytest.importorskip("scann")
    evaluations = [
        RetrievalEvaluation((IMAGES, LABELS), ks=[2, 5, 40], prefix="test/"),
        RetrievalEvaluation((IMAGES, LABELS), ks=[2], prefix="scann_", search="scann"),
    ]
    exact, scann = (evaluate(scripted_model(), evaluation) for evaluation in evaluations)
    wanted = by_hand(IMAGES, ks=[2, 5])
    assert exact == approximately({key.replace("val_", "test/"): wanted[key] for key in wanted})
    assert scann == {"scann_recall_at_2": wanted["val_recall_at_2"], "scann_scann_recall": 1.0}


def test_a_metric_of_the_same_name_is_not_replaced_without_a_word():
    model = small_model(metrics=[tfrank.metrics.BatchRecallAt1()])
    data = {"validation_data": (IMAGES, LABELS)}
    with pytest.warns(UserWarning, match="logs have val_recall_at_1 already"):
        fit(model, RetrievalEvaluation((IMAGES, LABELS)), **data)
    assert {"val_recall_at_1", "test_recall_at_1"} <= {
        *fit(model, RetrievalEvaluation((IMAGES, LABELS), prefix="test_"), **data)
    }


def two_outputs(structure):
    """A model of a half of the image that tells the class, and of the other; with one loss for each."""
    inputs = keras.Input([16])
    halves = [
        keras.layers.Lambda(lambda x: x[:, :8] * 1000.0, name="low")(inputs),
        keras.layers.Lambda(lambda x: x[:, 8:], name="high")(inputs),
    ]
    model = keras.Model(inputs, structure(halves))
    model.compile("sgd", loss=structure([tfrank.PNPLoss("dq")] * 2))
    return model


def as_dict(outputs):
    return dict(zip("ab", outputs))


@pytest.mark.parametrize(
    ("structure", "names"),
    [slow(list, ("low", "high")), slow(tuple, ("low", "high")), (as_dict, ("a", "b"))],
)
def test_of_several_outputs_the_named_one_is_evaluated_or_several_side_by_side(structure, names):
    low, high = np.split(IMAGES, 2, axis=1)
    unit = [half / np.linalg.norm(half, axis=1, keepdims=True) for half in (low, high)]
    cases = {names[0]: low, names[1]: high, names: np.concatenate(unit, axis=1)}
    model = two_outputs(structure)
    for output, embeddings in cases.items():
        evaluation = RetrievalEvaluation((IMAGES, LABELS), output=output)
        history = model.fit(IMAGES, structure([LABELS] * 2), callbacks=[evaluation], verbose=0).history
        wanted = by_hand(embeddings)
        assert {key: history[key][-1] for key in wanted} == approximately(wanted)


class Pair(keras.Model):
    """A model of a class of its own, whose outputs have no names."""

    def call(self, images):
        return images[:, :8], images[:, 8:]


def test_outputs_without_names_are_chosen_by_their_number():
    low, high = np.split(IMAGES, 2, axis=1)
    for number, half in enumerate([low, high]):
        logs = evaluate(Pair(), RetrievalEvaluation((IMAGES, LABELS), output=number))
        assert logs == approximately(by_hand(half))


@pytest.mark.parametrize(
    ("structure", "names", "first"), [(list, r"\['low', 'high'\]", "low"), (as_dict, r"\['a', 'b'\]", "a")]
)
def test_several_outputs_of_which_none_is_chosen_are_refused_before_an_epoch_is_trained(
    structure, names, first
):
    model, epochs = two_outputs(structure), []
    counting = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: epochs.append(1))
    callbacks = [counting, RetrievalEvaluation((IMAGES, LABELS))]
    message = rf"The model has 2 outputs, {names}\. Say which is the embedding: .*\(data, output='{first}'\)"
    with pytest.raises(InputError, match=message):
        model.fit(IMAGES, structure([LABELS] * 2), callbacks=callbacks, verbose=0)
    assert not epochs


def test_an_output_that_the_model_does_not_have_is_refused_with_those_that_it_has():
    model, evaluation = two_outputs(list), RetrievalEvaluation((IMAGES, LABELS), output="hihg")
    with pytest.raises(InputError, match=r"Expected one of \['low', 'high'\].*Did you mean \"high\"\?"):
        model.fit(IMAGES, [LABELS] * 2, callbacks=[evaluation], verbose=0)
    with pytest.raises(InputError, match=r"The model has 2 outputs, \[0, 1\].*output=0"):
        evaluate(Pair(), RetrievalEvaluation((IMAGES, LABELS)))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int32"])
def test_a_model_gets_images_as_fit_gives_them(dtype):
    class Model(keras.Model):
        def call(self, images):
            seen.add(images.dtype.name)
            return tf.one_hot(tf.cast(images[:, 0], tf.int32) % 8, 8) * self.scale

        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones")

    seen = set()
    images = np.repeat(LABELS[:, None], 2, axis=1).astype(dtype)
    model = Model()
    model.compile("sgd", loss=tfrank.PNPLoss("dq"))
    history = model.fit(images, LABELS, verbose=0, callbacks=[RetrievalEvaluation((images, LABELS))]).history
    assert seen == {"float32" if dtype == "float64" else dtype}
    assert history["val_map"] == [1.0]


# Ids that are one and the same in float32, texts, several inputs: what a model may take.
IDS = np.int64(2**24) + 1 + np.arange(40)
TEXTS = np.array([f"class {label}, image {number}" for number, label in enumerate(LABELS)])


def of_ids(name=None):
    """Maps an id to the row of its image; ids are compared as integers."""
    return lambda ids: tf.gather(tf.constant(IMAGES), tf.cast(ids - IDS[0], tf.int32) % 40)


class Embedder(keras.Model):
    """Calls a function on its inputs, whatever they are."""

    def __init__(self, function):
        super().__init__()
        self._function, self.scale = function, self.add_weight(shape=(), initializer="ones")

    def call(self, inputs):
        return self._function(inputs) * self.scale


def of_texts(texts):
    numbers = tf.strings.to_number(tf.strings.split(texts, " ").to_tensor()[:, -1], tf.int64)
    return tf.gather(tf.constant(IMAGES), numbers)


def as_integers(ids):
    assert ids.dtype == tf.int64
    return of_ids()(ids)


HALVES = {"low": IMAGES[:, :8], "high": IMAGES[:, 8:]}
INPUTS = {
    "ids above 2^24": (IDS, as_integers, IMAGES),
    "texts": (TEXTS, of_texts, IMAGES),
    "a dict": ({**HALVES, "id": IDS}, lambda x: of_ids()(x["id"]) + 0 * x["low"][:, :1], IMAGES),
    "a list": (list(HALVES.values()), lambda x: tf.concat(x, axis=1), IMAGES),
}


class Batches(keras.utils.PyDataset):
    """Tuples of arrays in batches of eight."""

    def __init__(self, *arrays):
        super().__init__()
        self._arrays = arrays

    def __len__(self):
        return 5

    def __getitem__(self, number):
        rows = slice(8 * number, 8 * number + 8)
        return tf.nest.map_structure(lambda array: array[rows], self._arrays)


FORMS = {
    "arrays": lambda *data: data,
    "tf.data": lambda *data: dataset(tf.nest.map_structure(tf.constant, as_tuples(data))).batch(8),
    "PyDataset": Batches,
}


def as_tuples(data):
    """tf.data takes a list as an array."""
    return tuple(tuple(one) if isinstance(one, list) else one for one in data)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_reach_the_model_unchanged_in_every_form_that_fit_takes(kind, form):
    inputs, function, wanted = INPUTS[kind]
    for weights in ((), (np.ones(40, "float32"),)):
        data = FORMS[form](inputs, LABELS, *weights)
        logs = evaluate(Embedder(function), RetrievalEvaluation(data, batch_size=9))
        assert logs == approximately(by_hand(wanted))


def test_ragged_inputs_and_tables_reach_the_model():
    model = Embedder(lambda x: tf.one_hot(tf.cast(tf.reduce_mean(x, axis=1), tf.int32), 8))
    ragged = tf.ragged.constant([[label] * (1 + number % 3) for number, label in enumerate(LABELS)])
    for data in ((ragged, LABELS), dataset((ragged, LABELS)).batch(8)):
        assert evaluate(model, RetrievalEvaluation(data))["val_map"] == 1.0
    table = RetrievalEvaluation((IMAGES.tolist(), LABELS.tolist()))
    assert evaluate(scripted_model(), table) == evaluate(
        scripted_model(), RetrievalEvaluation((IMAGES, LABELS))
    )


@pytest.mark.parametrize("structure", [list, as_dict])
def test_of_labels_for_each_output_those_of_the_chosen_one_count(structure):
    names = ["a", "b"] if structure is as_dict else ["low", "high"]
    halves, both = np.split(IMAGES, 2, axis=1), [LABELS, LABELS[::-1] % 3]
    for name, half, labels in zip(names, halves, both):
        evaluation = RetrievalEvaluation((IMAGES, structure(both)), output=name)
        assert evaluate(two_outputs(structure), evaluation) == approximately(by_hand(half, labels))


def test_the_distance_is_the_users():
    model = small_model()
    rows = model(IMAGES, training=False).numpy()
    wanted = tfrank.evaluation.evaluate(rows, LABELS, ks=(1, 10), distance="euclidean").metrics
    found = evaluate(model, RetrievalEvaluation((IMAGES, LABELS), distance="euclidean"))
    assert found == {f"val_{name}": wanted[name] for name in ("recall_at_1", "recall_at_10", "map")}
    assert found["val_map"] != evaluate(model, RetrievalEvaluation((IMAGES, LABELS)))["val_map"]
    with pytest.raises(InputError, match="Euclidean distance needs"):
        RetrievalEvaluation((IMAGES, LABELS), distance="euclidean", search="scann")


def test_images_of_the_label_to_ignore_are_left_out():
    labels = np.where(np.arange(40) % 7 == 3, -1, LABELS)
    known = labels != -1
    logs = evaluate(scripted_model(), RetrievalEvaluation((IMAGES, labels), ignore_label=-1))
    assert logs == approximately(by_hand(IMAGES[known], labels[known]))
    assert logs != evaluate(scripted_model(), RetrievalEvaluation((IMAGES, labels)))
    with pytest.raises(InputError, match=r"`ignore_label`. Expected an integer, such as -1, or None"):
        RetrievalEvaluation((IMAGES, LABELS), ignore_label="-1")


def test_the_model_is_not_traced_again_each_epoch():
    class Counting(keras.layers.Layer):
        def call(self, x, training=None):
            traces.append(training)
            return x

    traces = []
    model = keras.Sequential([keras.Input([16]), keras.layers.Dense(4), Counting()])
    model.compile("sgd", loss=tfrank.PNPLoss("dq"))
    traces.clear()
    fit(model, RetrievalEvaluation((IMAGES, LABELS), batch_size=16), epochs=5)
    # One for whole batches and one for any size.
    assert traces.count(False) == 2


def test_early_stopping_and_checkpoints_choose_by_recall(tmp_path):
    qualities = (0.3, 0.1, 5.0, 0.2, 0.0, 0.1)
    path, model = tmp_path / "best.keras", scripted_model()
    best = {"monitor": "val_recall_at_1", "mode": "max"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        history = fit(
            model,
            Quality(*qualities),
            RetrievalEvaluation((IMAGES, LABELS)),
            keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True, **best),
            keras.callbacks.ModelCheckpoint(path, save_best_only=True, **best),
            epochs=6,
        )
    wanted = recalls(*qualities[:5])
    assert history["val_recall_at_1"] == wanted
    assert max(wanted) == wanted[2] > max(wanted[:2])
    for chosen in (model, keras.models.load_model(path)):
        assert chosen.get_weights()[0][0, 0] == 5.0


def test_loggers_and_the_progress_bar_show_the_numbers(tmp_path, capsys):
    qualities = (0.1, 5.0)
    history = fit(
        scripted_model(),
        Quality(*qualities),
        RetrievalEvaluation((IMAGES, LABELS)),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(tmp_path),
        epochs=2,
        verbose=2,
    )
    wanted = recalls(*qualities)
    assert history["val_recall_at_1"] == wanted
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("Epoch")]
    assert all(f"val_recall_at_1: {value:.4f}" in line for value, line in zip(wanted, lines, strict=True))
    with open(tmp_path / "log.csv") as file:
        assert [float(row["val_recall_at_1"]) for row in csv.DictReader(file)] == wanted
    (events,) = (tmp_path / "validation").iterdir()
    logged = [
        float(tf.make_ndarray(value.tensor))
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
        if value.tag == "epoch_recall_at_1"
    ]
    assert logged == approximately(wanted)


def test_between_evaluations_the_last_values_stand(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(callbacks, "embed", lambda *given, **how: calls.append(1) or embed(*given, **how))
    qualities, path = (0.1, 5.0, 1.0, 5.0, 5.0, 0.5, 0.2), tmp_path / "best.keras"
    evaluation = RetrievalEvaluation((IMAGES, LABELS), every=3)
    best = {"monitor": "val_recall_at_1", "mode": "max"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        history = fit(
            scripted_model(),
            Quality(*qualities),
            evaluation,
            keras.callbacks.EarlyStopping(patience=5, **best),
            keras.callbacks.ModelCheckpoint(path, save_best_only=True, **best),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
            epochs=7,
        )
    first, third, sixth, seventh = recalls(0.1, 1.0, 0.5, 0.2)
    assert third > sixth > first
    assert history["val_recall_at_1"] == [first, first, third, third, third, sixth, seventh]
    assert len(calls) == 4
    # Not the weights of an epoch that was not measured.
    assert keras.models.load_model(path).get_weights()[0][0, 0] == 1.0
    with open(tmp_path / "log.csv") as file:
        assert [float(row["val_recall_at_1"]) for row in csv.DictReader(file)] == history["val_recall_at_1"]


def test_a_second_fit_is_measured_anew():
    model, evaluation = scripted_model(), RetrievalEvaluation((IMAGES, LABELS), every=10)
    assert fit(model, Quality(0.1, 0.1), evaluation, epochs=2)["val_recall_at_1"][0] == recalls(0.1)[0]
    history = fit(model, Quality(0, 5.0, 0.1), evaluation, epochs=3, initial_epoch=1)
    assert history["val_recall_at_1"] == recalls(5.0, 0.1)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="graph"),
        pytest.param({"jit_compile": True}, id="jit", marks=pytest.mark.slow),
        pytest.param({"run_eagerly": True}, id="eager", marks=pytest.mark.slow),
    ],
)
def test_training_is_the_same_bit_for_bit_with_and_without(options):
    def weights(*others):
        model = small_model(**options)
        fit(model, *others, epochs=3, validation_data=(IMAGES, LABELS))
        return [variable.numpy() for variable in model.variables + model.optimizer.variables]

    without, with_it = weights(), weights(RetrievalEvaluation((IMAGES, LABELS)))
    for a, b in zip(without, with_it, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", [slow("mixed_bfloat16"), "mixed_float16", slow("float64")])
def test_any_precision_is_evaluated(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = small_model()
    finally:
        keras.config.set_dtype_policy(before)
    history = fit(model, RetrievalEvaluation((IMAGES, LABELS), batch_size=40))
    wanted = by_hand(embed_fn(model)(IMAGES))
    # In half precision some similarities are so near that another order of rounding changes their ranks.
    assert last(history) == pytest.approx(wanted, abs=1e-6 if policy == "float64" else 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lifted_structure", "margin"])
def test_losses_of_whole_matrices_and_those_that_read_the_step_train_with_it(name):
    history = fit(small_model(tfrank.LOSSES[name]()), RetrievalEvaluation((IMAGES, LABELS)))
    assert 0 < history["val_map"][0] <= 1


def test_nothing_of_its_own_is_printed(capsys):
    fit(small_model(), RetrievalEvaluation((IMAGES, LABELS)))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", [np.nan, slow(np.inf)])
@pytest.mark.parametrize("outputs", [1, 2])
def test_an_embedding_that_is_not_finite_is_named_by_its_number(value, outputs):
    images, inputs = IMAGES.copy(), keras.Input([16])
    images[23, 0] = value
    model = keras.Model(inputs, [keras.layers.Dense(4)(inputs) for _ in range(outputs)])
    model.compile("sgd", loss=[tfrank.PNPLoss("dq")] * outputs)
    evaluation = RetrievalEvaluation((images, LABELS), batch_size=10, output=model.output_names)
    with pytest.raises(InputError, match="embedding of image 23 is not finite"):
        model.fit(IMAGES, [LABELS] * outputs, verbose=0, callbacks=[evaluation])


# Made in the tests, since a process that will have two devices imports this file first.
@pytest.mark.parametrize(
    ("make_data", "message"),
    [
        (lambda: DATA["pairs"](np.arange(40)), "No image has another of its class"),
        (lambda: DATA["pairs"](LABELS).take(0), "There is no image to embed"),
        (lambda: DATA["unknown shapes"](np.eye(40, dtype=int)), r"data=\(.*\(40, 40\)"),
    ],
    ids=["lone images", "no images", "one-hot labels"],
)
def test_data_that_cannot_be_evaluated_is_said_in_one_message(make_data, message):
    with pytest.raises(InputError, match=message):
        evaluate(scripted_model(), RetrievalEvaluation(make_data()))


def test_an_output_that_is_no_embedding_is_refused():
    model = keras.Sequential([keras.Input([16]), keras.layers.Reshape([4, 4])])
    model.compile("sgd", loss="mse")
    evaluation = RetrievalEvaluation((IMAGES, LABELS))
    with pytest.raises(InputError, match=r"output is not \[batch, dim\]. Its shape is \(40, 4, 4\)"):
        model.fit(IMAGES, IMAGES.reshape(40, 4, 4), batch_size=20, verbose=0, callbacks=[evaluation])


@pytest.mark.parametrize(
    "data",
    [
        IMAGES,
        [IMAGES, LABELS],
        (IMAGES,),
        (IMAGES, LABELS, LABELS, LABELS),
        (IMAGES, LABELS * 1.0),
        (IMAGES, LABELS[:-1]),
        (IMAGES, np.eye(40, dtype=int)),
        ({"image": IMAGES[:-1], "id": LABELS}, LABELS),
        lambda: dataset((IMAGES, LABELS)),
        lambda: dataset((IMAGES, LABELS)).batch(8).repeat(),
        lambda: dataset((IMAGES, LABELS * 1.0)).batch(8),
        lambda: dataset((IMAGES, LABELS, LABELS, LABELS)).batch(8),
        lambda: dataset({"image": IMAGES, "target": LABELS}).batch(8),
    ],
    ids=range(13),
)
def test_data_of_another_form_is_refused(data):
    with pytest.raises(InputError, match=r"^Invalid value for argument `data`. Expected images \[n, ...\]"):
        RetrievalEvaluation(data() if callable(data) else data)


def test_arrays_without_two_images_of_a_class_are_refused_before_training():
    with pytest.raises(InputError, match="No image of `data` has another of its class"):
        RetrievalEvaluation((IMAGES, np.arange(40)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ks", []),
        ("ks", [0]),
        ("ks", 1),
        ("ks", [1.5]),
        ("every", 0),
        ("every", True),
        ("prefix", None),
        ("batch_size", 0),
        ("search", "exakt"),
    ],
)
def test_bad_arguments_are_refused(name, value):
    with pytest.raises(InputError, match=rf"Invalid value for argument `{name}`.*Received: {name}="):
        RetrievalEvaluation((IMAGES, LABELS), **{name: value})


def replicas(strategy):
    """A fit with batch norm on one device or two, in a process of its own; prints what it logged."""
    if strategy == "mirrored":
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    else:
        strategy = tf.distribute.get_strategy()
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(0)
    layers = keras.layers
    with strategy.scope():
        model = keras.Sequential([keras.Input([16]), layers.Dense(8)])
        model.add(layers.BatchNormalization(synchronized=True, momentum=0.5))
        model.add(layers.Dense(4))
        model.compile(keras.optimizers.SGD(0.1), loss=tfrank.PNPLoss("dq"))
    batches = dataset((IMAGES.astype("float64"), LABELS)).batch(20, drop_remainder=True)
    evaluations = [
        RetrievalEvaluation((IMAGES, LABELS), batch_size=9),
        RetrievalEvaluation(batches, prefix="again_"),
    ]
    history = model.fit(batches, epochs=3, verbose=0, callbacks=evaluations).history
    with strategy.scope():
        history["inside"] = model.fit(batches, verbose=0, callbacks=evaluations).history["val_map"]
    print(json.dumps(history))


@pytest.mark.slow
def test_two_replicas_log_the_numbers_of_one_device():
    def run(strategy):
        return printed_json("-c", f"from tests.test_callbacks import replicas; replicas({strategy!r})")

    one, two = run("one_device"), run("mirrored")
    assert two["val_map"] == two["again_map"]
    assert len(set(two["val_map"])) == 3
    for name, values in one.items():
        assert two[name] == pytest.approx(values, abs=1e-9), name
