"""Every loss under Keras' own compile, fit, evaluate, save and load, on one device."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow, slow_but
from tests.command_lines import run
from tests.losses import KINDS, KINDS_AND_STATE
from tests.losses.fresh_process import FEATURES, LABELS, train_one_step
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.configs import default
from tfrank.losses.core.ranking_loss import NO_POSITIVES
from tfrank.run.objective import build_objective

of_few = pytest.mark.parametrize("name", slow_but(("smooth_ap", "lifted_structure"), KINDS))


def small_model(loss, optimizer="sgd", **compile_arguments):
    """Integer weights and inputs: embeddings are exact in every float dtype."""
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
    model.set_weights([np.random.default_rng(2).integers(-3, 4, size=(6, 4))])
    model.compile(optimizer, loss, **compile_arguments)
    return model


def few(name):
    """Marks of a test that few losses are enough for, as they share what is tested."""
    return () if name in ("smooth_ap", "lifted_structure") else pytest.mark.slow


@pytest.fixture
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


POLICIES = [("float32", True), ("mixed_bfloat16", True), ("mixed_float16", "auto")]


@pytest.mark.parametrize(
    "name, policy, jit_compile",
    [pytest.param(name, "float32", "auto", marks=few(name)) for name in KINDS_AND_STATE]
    + [
        (name, *policy) if name == "smooth_ap" and policy in POLICIES[1:] else slow(name, *policy)
        for name in KINDS
        for policy in POLICIES
    ],
    indirect=["policy"],
)
def test_fit_logs_the_loss_computed_by_hand_and_learns(name, policy, jit_compile):
    # Embeddings have norms near 10, and a similarity's gradient is so many times smaller than a unit
    # row's: at lower rates bfloat16 rounds steps away, and those of exact ranks pass no other row.
    # Where rows are taken as they are, it is so many times larger.
    loss = losses.get(name)
    rate = 3.0 if loss.normalize else 0.003
    model = small_model(loss, keras.optimizers.SGD(rate), jit_compile=jit_compile)
    embeddings = model(FEATURES)
    assert embeddings.dtype == policy.removeprefix("mixed_")
    loss.iteration = tf.Variable(0)  # The first step, by which some losses draw.
    by_hand = loss(LABELS, embeddings)
    loss.iteration = None
    np.testing.assert_allclose(train_one_step(model), by_hand, rtol=1e-5)
    # mixed_float16 leaves out the first steps, till its loss scale fits.
    for _ in range(9):
        train_one_step(model)
    assert loss(LABELS, model(FEATURES)) < loss(LABELS, embeddings) - 0.01


@of_few
def test_evaluate_gives_the_mean_of_the_batches(name):
    loss = losses.get(name)
    model = small_model(loss)
    embeddings = model(FEATURES)
    by_hand = [loss(LABELS[start::2], embeddings[start::2]) for start in (0, 1)]
    order = np.r_[0:12:2, 1:12:2]
    value = model.evaluate(FEATURES[order], LABELS[order], batch_size=6, verbose=0)
    np.testing.assert_allclose(value, np.mean(by_hand), rtol=1e-5)


@pytest.mark.parametrize("feed", ["arrays", "dataset"])
@of_few
def test_large_labels_reach_the_loss_unharmed(name, feed):
    """In float32 these two classes are one, and a batch of one class has another loss."""
    labels = 2**24 + np.arange(12) % 2
    loss = losses.get(name)
    model = small_model(loss)
    by_hand = loss(labels, model(FEATURES))
    assert by_hand != loss(labels.astype("float32").astype("int64"), model(FEATURES))
    if feed == "arrays":
        history = model.fit(FEATURES, labels, batch_size=12, shuffle=False, verbose=0)
    else:
        batches = tf.data.Dataset.from_tensor_slices((FEATURES, labels[:, None])).batch(12)
        history = model.fit(batches, shuffle=False, verbose=0)
    np.testing.assert_allclose(history.history["loss"], [by_hand], rtol=1e-5)


@of_few
def test_sample_weights_of_fit_reach_the_loss(name):
    weights = np.linspace(0, 2, 12)
    loss = losses.get(name)
    model = small_model(loss)
    by_hand = loss(LABELS, model(FEATURES), sample_weight=weights)
    history = model.fit(FEATURES, LABELS, 12, sample_weight=weights, shuffle=False, verbose=0)
    np.testing.assert_allclose(history.history["loss"], [by_hand], rtol=1e-5)


def test_class_weights_of_fit_weigh_queries_and_rows_of_proxies_by_their_class():
    weights = {int(label): 1.0 + number for number, label in enumerate(np.unique(LABELS))}
    of_rows = np.array([weights[int(label)] for label in LABELS])
    for loss in (losses.get("smooth_ap"), losses.get("arc_face", labels=LABELS)):
        model = small_model(loss)
        if hasattr(loss, "proxies"):
            model = keras.Sequential([model, loss.proxies()])
            model.compile("sgd", loss)
        unweighted = loss(LABELS, model(FEATURES))
        expected = loss(LABELS, model(FEATURES), sample_weight=of_rows)
        assert abs(expected - unweighted) > 1e-4
        fitted = model.fit(FEATURES, LABELS, batch_size=len(LABELS), class_weight=weights, verbose=0)
        np.testing.assert_allclose(fitted.history["loss"][0], expected, rtol=1e-6)


def test_fit_on_float_labels_is_refused():
    with pytest.raises(InputError, match=r"argument `labels`. Expected integers"):
        small_model(losses.get("pnp")).fit(FEATURES, LABELS.astype("float32"), verbose=0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights after two steps with a save between them: here, and in a fresh process."""
    folder = tmp_path_factory.mktemp("models")
    here = {}
    for name in KINDS_AND_STATE:
        model = small_model(losses.get(name), keras.optimizers.Adam(0.01))
        train_one_step(model)
        model.save(folder / f"{name}.keras")
        train_one_step(model)
        here[name] = model.get_weights()
    ended = run("-m", "tests.losses.fresh_process", folder)
    assert ended.status == 0, ended.errors
    there = {name: list(np.load(folder / f"{name}.npz").values()) for name in KINDS_AND_STATE}
    return here, there


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS_AND_STATE)
def test_a_step_after_save_and_load_in_a_fresh_process_gives_the_same_bits(trained, name):
    here, there = trained
    assert [weight.tobytes() for weight in here[name]] == [w.tobytes() for w in there[name]]


def warnings_of(act):
    """The messages of the warnings that it gives of batches without positives."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in given if str(one.message) == NO_POSITIVES]


@pytest.mark.parametrize("eager", [False, True])
def test_fit_on_batches_without_positives_warns_once(eager):
    def fit(labels):
        small_model(losses.get("pnp"), run_eagerly=eager).fit(FEATURES, labels, 4, epochs=3, verbose=0)

    assert warnings_of(lambda: fit(np.arange(12))) == [NO_POSITIVES]
    assert "tfrank.data.balanced_batches" in NO_POSITIVES
    assert warnings_of(lambda: fit(np.zeros(12, int))) == []


def test_a_loss_that_xla_compiles_trains_without_positives_and_cannot_warn():
    model = small_model(losses.get("pnp"), jit_compile=True)
    assert warnings_of(lambda: model.fit(FEATURES, np.arange(12), 4, verbose=0)) == []


def test_a_trainer_with_a_warning_of_its_own_is_not_warned_twice():
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4)])
    objective = build_objective(default.get_config("pnp"), model, [0, 1], keras.Variable(0, dtype="int64"))
    labels, outputs = tf.range(12), objective.model(FEATURES)
    assert warnings_of(lambda: tf.function(objective.loss)(labels, outputs)) == []
