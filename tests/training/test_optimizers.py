"""Optimizers against plain loops, PyTorch, and two replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_lines import run
from tfrank.common.checks import InputError
from tfrank.training.optimizers import OPTIMIZERS, build_optimizer, check_names
from tfrank.training.schedules import build_schedule

STEPS = 5
# Powers of two, which are exact in float32, so that no rounding of a rate hides an error.
RATES = [0.125, 0.125, 0.0625, 0.03125, 0.03125]
NAMES = ("backbone/kernel", "backbone/bias", "embedding/kernel", "embedding/bias")
BY_PATH = dict(no_decay=("bias",), multipliers={"embedding/bias": 0.0, "embedding": 10.0})
# Keras rounds these to float32, in which they are exact.
MOMENTUM, BETA_1, BETA_2, EPSILON = 0.875, 0.75, 0.9375, 2.0**-26
ADAM = {"beta_1": BETA_1, "beta_2": BETA_2, "epsilon": EPSILON}
OWN = {"adam": ADAM, "adamw": ADAM, "sgd": {"momentum": MOMENTUM}}
DECAYED = {"adam": 0.0, "adamw": 0.25, "sgd": 0.25}


def schedule():
    return build_schedule("steps", RATES[0], total_steps=STEPS, boundaries=(2, 3), factor=0.5)


def start(dtype="float64"):
    random = np.random.default_rng(0)
    return {name: random.normal(size=3).astype(dtype) for name in NAMES}


def gradient(name, step):
    """Three numbers that change with the step; the last of the order of Adam's epsilon."""
    random = np.random.default_rng([step, NAMES.index(name)])
    return random.normal(size=3) * [3.0, 0.1, 1e-8]


def make_variables(values):
    variables = []
    for name, value in values.items():
        layer, part = name.split("/")
        with keras.name_scope(layer):
            variables.append(keras.Variable(value, dtype=value.dtype, name=part))
    return variables


def apply(optimizer, variables, steps, share=1.0):
    """Takes steps in graphs, as the training does."""

    @tf.function
    def step(gradients):
        def replica_step():
            scaled = [optimizer.scale_loss(tf.constant(share, g.dtype)) * g for g in gradients]
            optimizer.apply_gradients(zip(scaled, variables))

        tf.distribute.get_strategy().run(replica_step)

    for t in steps:
        step([tf.constant(gradient(v.path, t), v.dtype) for v in variables])


def train(optimizer, values=None):
    variables = make_variables(values or start())
    optimizer.build(variables)
    apply(optimizer, variables, range(STEPS))
    return {v.path: v.numpy() for v in variables}


def build(name, learning_rate=None, **options):
    rate = schedule() if learning_rate is None else learning_rate
    options = {"learning_rate": rate, "decoupled": DECAYED[name], **OWN[name], **options}
    return build_optimizer(name, **options)


def expected(kind, multiplier, decay):
    """The published formulas, number by number."""
    values = {}
    for name, value in start().items():
        values[name] = []
        for place, w in enumerate(value):
            m = v = 0.0
            for t, rate in enumerate(RATES, start=1):
                g = gradient(name, t - 1)[place]
                rate = rate * multiplier[name]
                w = w * (1 - rate * decay[name])
                if kind == "sgd":
                    v = MOMENTUM * v - rate * g
                    w = w + v
                else:
                    m = BETA_1 * m + (1 - BETA_1) * g
                    v = BETA_2 * v + (1 - BETA_2) * g * g
                    w = w - rate * (1 - BETA_2**t) ** 0.5 / (1 - BETA_1**t) * m / (v**0.5 + EPSILON)
            values[name].append(w)
    return values


def assert_same(values, others, tolerance):
    for name in NAMES:
        np.testing.assert_allclose(values[name], others[name], tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_follows_the_published_formula_at_the_rate_of_its_time(name):
    multiplier, decay = dict.fromkeys(NAMES, 1.0), dict.fromkeys(NAMES, DECAYED[name])
    assert_same(train(build(name)), expected(name, multiplier, decay), 1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_multipliers_scale_rate_and_decay_and_excluded_variables_do_not_decay(name):
    multiplier = dict(zip(NAMES, (1.0, 1.0, 10.0, 0.0)))
    decay = dict(zip(NAMES, (DECAYED[name], 0.0, DECAYED[name], 0.0)))
    values = train(build(name, **BY_PATH))
    assert_same(values, expected(name, multiplier, decay), 1e-6)
    np.testing.assert_array_equal(values["embedding/bias"], start()["embedding/bias"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_multiplier_is_another_run_at_that_rate_bit_for_bit(name):
    both = train(build(name, 0.125, multipliers={"embedding": 10}), start("float32"))
    slow, fast = (train(build(name, rate), start("float32")) for rate in (0.125, 1.25))
    for path in NAMES:
        np.testing.assert_array_equal(both[path], (fast if "embedding" in path else slow)[path])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loss_scale_changes_nothing(name):
    scaled = keras.optimizers.LossScaleOptimizer(build(name, **BY_PATH))
    assert_same(train(scaled, start("float32")), train(build(name, **BY_PATH), start("float32")), 1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_optimizer_goes_on_bit_for_bit(name, tmp_path):
    def setup():
        variables, optimizer = make_variables(start("float32")), build(name, **BY_PATH)
        optimizer.build(variables)
        state = tf.train.Checkpoint(optimizer=optimizer, variables=[v.value for v in variables])
        return variables, optimizer, state

    variables, optimizer, state = setup()
    apply(optimizer, variables, range(3))
    path = state.save(str(tmp_path / "state"))
    restored_variables, restored, restored_state = setup()
    restored_state.restore(path).assert_consumed()
    assert len(optimizer.variables) == 1 + len(NAMES) * (1 if name == "sgd" else 2)
    for ours, theirs in zip(optimizer.variables, restored.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    apply(optimizer, variables, range(3, STEPS))
    apply(restored, restored_variables, range(3, STEPS))
    for ours, theirs in zip(variables, restored_variables):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_survives_its_config(name):
    again = keras.optimizers.deserialize(keras.optimizers.serialize(build(name, **BY_PATH)))
    assert_same(train(again), train(build(name, **BY_PATH)), 0)


def test_the_defaults_are_those_of_the_papers():
    adam = build_optimizer("adam", learning_rate=0.1).get_config()
    assert (adam["beta_1"], adam["beta_2"], adam["epsilon"]) == (0.9, 0.999, 1e-8)
    assert build_optimizer("sgd", learning_rate=0.1).get_config()["momentum"] == 0.9


def two_replicas(path):
    """Steps on two logical CPUs, with half of the gradient on each; in a process of its own."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    values = {}
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        for name in OPTIMIZERS:
            for scaled in (False, True):
                variables, optimizer = make_variables(start()), build(name, **BY_PATH)
                if scaled:
                    optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
                optimizer.build(variables)
                apply(optimizer, variables, range(STEPS), share=0.5)
                values |= {f"{name} {scaled} {v.path}": v.numpy() for v in variables}
    np.savez(path, **values)


@pytest.mark.slow
def test_two_replicas_update_as_one_device_does(tmp_path):
    path = tmp_path / "values.npz"
    code = f"from tests.training.test_optimizers import two_replicas; two_replicas({str(path)!r})"
    ended = run("-c", code)
    assert ended.status == 0, ended.errors
    with np.load(path) as values:
        for name in OPTIMIZERS:
            one = train(build(name, **BY_PATH))
            for scaled in (False, True):
                two = {variable: values[f"{name} {scaled} {variable}"] for variable in NAMES}
                assert_same(two, one, 1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pytorch_takes_the_same_steps(name):
    torch = pytest.importorskip("torch", reason="PyTorch, the peer, is the extra `bench`")
    weights = {path: torch.tensor(value, requires_grad=True) for path, value in start().items()}
    groups = [
        {"params": weight, "lr": 0.125 * (10 if "embedding" in path else 1)}
        | ({} if "bias" not in path else {"weight_decay": 0.0})
        for path, weight in weights.items()
    ]
    decoupled, l2 = (0.25, 0.0) if name == "adamw" else (0.0, 0.25)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    options = {"momentum": MOMENTUM} if name == "sgd" else {"betas": (BETA_1, BETA_2), "eps": EPSILON}
    theirs = kind(groups, weight_decay=0.25, **options)
    variables = make_variables(start())
    ours = build(name, 0.125, no_decay=("bias",), multipliers={"embedding": 10}, decoupled=decoupled)
    ours.build(variables)
    for step in range(STEPS):
        # Far above epsilon, which is at another place in PyTorch.
        gradients = {path: gradient(path, step) * [1, 1, 1e8] for path in NAMES}
        for path, weight in weights.items():
            weight.grad = torch.tensor(gradients[path])
        theirs.step()
        decays = [0.0 if "bias" in v.path else l2 for v in variables]
        ours.apply_gradients([(gradients[v.path] + d * v, v) for v, d in zip(variables, decays)])
    others = {path: weight.detach().numpy() for path, weight in weights.items()}
    assert_same({v.path: v.numpy() for v in variables}, others, 1e-4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(name="adamv"), r"argument `optimizer`.*Did you mean \"adam\w?\"\?"),
        (dict(learning_rate=0), "argument `learning_rate`. Expected a finite number above 0"),
        (dict(name="sgd", momentum=1.5), "argument `momentum`. Expected .* of at most 1"),
        (dict(momentum=0.8), 'argument `momentum`. Expected 0.9, the default, as "adam" does not use it'),
        (
            dict(name="sgd", epsilon=1e-7),
            'argument `epsilon`. Expected 1e-08, the default, as "sgd" does not',
        ),
        (dict(beta_1=1), "argument `beta_1`. Expected a finite number of at least 0 and below 1"),
        (dict(beta_2=-0.1), "argument `beta_2`. Expected a finite number of at least 0 and below 1"),
        (dict(epsilon=0), "argument `epsilon`. Expected a finite number above 0"),
        (dict(decoupled=-1), "argument `decoupled`. Expected a finite number of at least 0"),
        (dict(decoupled=0.1), 'Expected 0 for "adam"; for decoupled decay use "adamw"'),
        (dict(name="adamw"), 'Expected a number above 0 for "adamw"; without decay use "adam"'),
        (dict(no_decay="bias"), "argument `no_decay`. Expected a list of parts of variables' paths"),
        (dict(no_decay=[""]), "argument `no_decay`. Expected a list of parts of variables' paths"),
        (dict(multipliers=["bias"]), "argument `multipliers`. Expected a dict"),
        (dict(multipliers={"bias": -1}), "argument `multipliers`. Expected a finite number of at least 0"),
    ],
)
def test_a_bad_argument_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        build_optimizer(**{"learning_rate": 0.1, **arguments})


@pytest.mark.parametrize(
    "multipliers, message",
    [
        ({"embeding": 10}, r"`multipliers`.* backbone/kernel, .*'embeding'. Did you mean \"embedding\"\?"),
        (
            {"embedding/": 10, "embedding": 2},
            'Expected no longer names that match all variables of "embedding"',
        ),
    ],
)
def test_a_multiplier_that_applies_to_nothing_is_refused(multipliers, message):
    optimizer = build_optimizer("sgd", learning_rate=0.1, multipliers=multipliers)
    with pytest.raises(InputError, match=message):
        optimizer.build(make_variables(start()))


def test_what_does_not_decay_is_said_in_one_way_only_and_what_is_unknown_is_warned_of():
    variable = keras.Variable([2.0], name="bias")
    optimizer = build_optimizer("adamw", learning_rate=0.1, decoupled=0.1, no_decay=["bais"])
    with pytest.warns(UserWarning, match=r"no_decay=\['bais'\] matches no variable: bias"):
        optimizer.build([variable])
    with pytest.raises(InputError, match=r"named by no_decay=\[...\] of build_optimizer"):
        optimizer.exclude_from_weight_decay(var_names=["bias"])


def test_of_many_variables_the_first_and_the_last_are_named():
    variables = [keras.Variable(0.0, name=f"w{k}") for k in range(20)]
    check_names(variables, ["w7", "w1"], "no_decay")
    with pytest.raises(InputError, match=r"`no_decay`.* w0, w1, w2, w3, 12 more, w16, w17,"):
        check_names(variables, ["w7", "v"], "no_decay")
