"""With every loss of proxies, a training model shows embeddings to whatever asks for them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.losses.proxies import QUICK, one_of_each_kind
from tfrank import losses, metrics
from tfrank.callbacks import RetrievalEvaluation
from tfrank.common.checks import InputError
from tfrank.evaluation.ranking_results import leave_one_out
from tfrank.losses.proxies import SampledProxyLoss

RNG = np.random.default_rng(0)
LABELS = np.arange(48) // 6
FEATURES = (np.eye(8)[LABELS] + RNG.normal(size=[48, 8])).astype("float32")
TESTS = (FEATURES[1::2], LABELS[1::2])


class Subclassed(keras.Model):
    """A network of a class of its own."""

    def __init__(self, dense, layer):
        super().__init__()
        self.dense, self.layer = dense, layer

    def call(self, features):
        return self.layer(self.dense(features))


def sequential(dense, layer):
    return keras.Sequential([keras.Input([8]), dense, layer])


def functional(dense, layer):
    features = keras.Input([8])
    return keras.Model(features, layer(dense(features)))


def nested(dense, layer):
    return keras.Sequential([keras.Input([8]), functional(dense, layer)])


def in_stages(dense, layer):
    return tfrank.MultiStageModel(sequential(dense, layer), micro_batch_size=5)


def in_stages_of_a_class(dense, layer):
    inside = Subclassed(dense, layer)
    inside(FEATURES[:2])
    return tfrank.MultiStageModel(inside, micro_batch_size=5)


MODELS = {
    "sequential": sequential,
    "functional": functional,
    "nested": nested,
    "subclassed": Subclassed,
    "in stages": in_stages,
    "in stages, subclassed": in_stages_of_a_class,
}


def of_embeddings(features, labels, embed):
    """Recall@1 and mAP of the embeddings by hand."""
    rows = np.asarray(embed(features))
    return leave_one_out(rows / np.linalg.norm(rows, axis=1, keepdims=True), labels, [1])


def trained(build, loss, proxies, **options):
    """Logs of a fit with everything that measures embeddings, and the network before the proxies."""
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense(4)
    model = build(dense, proxies)
    model.compile("adam", loss, metrics=[metrics.BatchRecallAt1()], **options)
    evaluation = RetrievalEvaluation(TESTS, ks=[1])
    data = {"validation_data": (FEATURES, LABELS), "validation_batch_size": 48}
    history = model.fit(FEATURES, LABELS, 24, epochs=2, callbacks=[evaluation], verbose=0, **data).history
    return history, dense, model


def check_logs(history, dense):
    found = of_embeddings(*TESTS, dense)
    # The name of the batch metric is that of the callback's, which comes later.
    assert history["val_recall_at_1"][-1] == pytest.approx(found["recall_at_1"], abs=1e-6)
    assert history["val_map"][-1] == pytest.approx(found["map"], abs=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_is_measured_by_its_embeddings_without_proxies(kind):
    loss = losses.get("arc_face", labels=range(20))
    history, dense, model = trained(MODELS[kind], loss, loss.proxies())
    check_logs(history, dense)
    np.testing.assert_allclose(model.predict(FEATURES, verbose=0), dense(FEATURES), atol=1e-6)
    batch = metrics.BatchRecallAt1()
    batch.update_state(LABELS, dense(FEATURES))
    evaluated = model.evaluate(FEATURES, LABELS, batch_size=48, verbose=0, return_dict=True)
    assert evaluated["recall_at_1"] == pytest.approx(float(batch.result()))


@one_of_each_kind
def test_a_loss_is_measured_by_the_embeddings_and_so_are_its_wrappers(recipe):
    loss = recipe.loss(range(20))
    check_logs(*trained(sequential, loss, loss.proxies())[:2])
    sampled = SampledProxyLoss(recipe.loss(range(20)), share=0.6)
    check_logs(*trained(sequential, sampled, sampled.proxies())[:2])
    part = recipe.loss(range(20))
    summed = tfrank.WeightedSum([tfrank.PNPLoss(), part], [1.0, 0.5])
    check_logs(*trained(sequential, summed, part.proxies())[:2])


def test_of_several_outputs_with_one_loss_each_has_proxies_of_its_own():
    """Against a model of one output at a time."""
    features, loss = keras.Input([8]), losses.get("proxy_nca", labels=range(8))
    heads = [keras.layers.Dense(size, name=f"head{size}") for size in (4, 5)]
    layers = [loss.proxies(seed=seed) for seed in (0, 1)]
    model = keras.Model(features, [layer(head(features)) for head, layer in zip(heads, layers)])
    by_hand = [
        float(losses.get("proxy_nca", labels=range(8))(LABELS, layer(head(FEATURES))))
        for head, layer in zip(heads, layers)
    ]
    model.compile(keras.optimizers.SGD(0.1), loss)
    before = [layer.proxies.numpy() for layer in layers]
    history = model.fit(FEATURES, [LABELS, LABELS], batch_size=48, verbose=0).history
    assert history["loss"][0] == pytest.approx(sum(by_hand), rel=1e-5)
    assert all(np.any(layer.proxies.numpy() != old) for layer, old in zip(layers, before))


@pytest.mark.parametrize(
    "wrap", [lambda model: model, lambda model: tfrank.MultiStageModel(model, micro_batch_size=5)]
)
@pytest.mark.parametrize("name", [*QUICK, "sampled"])
def test_a_loaded_model_finds_its_proxies_and_goes_on_bit_for_bit(name, wrap, tmp_path):
    if name == "sampled":
        loss = SampledProxyLoss(losses.get("cos_face", labels=range(20)), share=0.6)
    else:
        loss = losses.get(name, labels=range(20))
    keras.utils.set_random_seed(0)
    model = wrap(sequential(keras.layers.Dense(4), loss.proxies()))
    model.compile("adam", loss)
    options = {"batch_size": 24, "shuffle": False, "verbose": 0}
    model.fit(FEATURES, LABELS, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = [one.fit(FEATURES, LABELS, **options).history["loss"] for one in (model, loaded)]
    assert again[0] == again[1]
    for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_losses_with_proxies_in_a_sum_each_find_their_own_also_after_loading(tmp_path):
    parts = [losses.get(name, labels=range(8)) for name in ("arc_face", "proxy_anchor")]
    loss = tfrank.WeightedSum(parts, [1.0, 0.5])
    layers = [part.proxies(seed=seed) for seed, part in enumerate(parts)]
    dense = keras.layers.Dense(4)
    model = keras.Sequential([keras.Input([8]), dense, *layers])
    alone = [part(LABELS, layer(dense(FEATURES))) for part, layer in zip(parts, layers)]
    np.testing.assert_allclose(loss(LABELS, model(FEATURES)), alone[0] + 0.5 * alone[1], rtol=1e-6)
    model.compile("sgd", loss)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        loaded.loss(LABELS, loaded(FEATURES)), loss(LABELS, model(FEATURES)), rtol=1e-6
    )


def test_a_compiled_model_outside_of_fit_is_served_by_the_layer_that_the_loss_made():
    loss = losses.get("cos_face", labels=range(8))
    model = sequential(keras.layers.Dense(4), loss.proxies())
    for xla in (False, True):
        embed = tf.function(model, jit_compile=xla)
        np.testing.assert_allclose(loss(LABELS, embed(FEATURES)), loss(LABELS, model(FEATURES)), rtol=1e-5)


def test_layers_that_cannot_be_told_apart_are_refused():
    loss = losses.get("cos_face", labels=range(8))
    model = keras.Sequential([keras.Input([8]), loss.proxies(), loss.proxies(seed=1)])
    with pytest.raises(InputError, match=r"2 layers of proxies fit the loss 'cos_face'.*name='first'"):
        loss(LABELS, model(FEATURES))
