"""The papers' pictures: what they show is the losses' own values and gradients, and the papers' formulas."""

import math

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from experiments import figures
from tests import reference
from tests.command_lines import run
from tfrank import losses
from tfrank.losses.pnp import pnp_loss
from tfrank.losses.smooth_ap import smooth_ap_loss

ALPHA, B = 4.0, 4.0
# The derivative of each curve by R, as the paper gives it: eq. 5, 7 and 6, 8, 10 and 11.
DERIVATIVES = {
    "o": lambda R: 1.0,
    "iu": lambda R: 1 + math.log(1 + R),
    "iu, eq. 6": lambda R: math.log(1 + R),
    "ib": lambda R: R / (1 + B * R),
    "ds": lambda R: 1 / (1 + R),
    "dq": lambda R: ALPHA / (1 + R) ** (ALPHA + 1),
}
COUNTS = np.linspace(0, 10, 41)
CORES = {"pnp": pnp_loss, "smooth_ap": smooth_ap_loss}


def only(curves, name):
    """The one point of a curve: value, derivative."""
    [value], [derivative] = curves[name]
    return value, derivative


def loss_by_negatives(loss, positives, negatives):
    """R(i, S_N) of the first positive, and of a query the loss and dL/dR, which every negative has to tell.

    A gallery row [s, 0] has similarity s to the query [1, 0] in the cores, which take rows as they are.
    """
    rows = tf.constant([[s, 0.0] for s in [*positives, *negatives]], tf.float64)
    labels = tf.constant([1] * len(positives) + [2] * len(negatives), tf.int64)
    query = tf.constant([1], tf.int64), tf.constant([[1.0, 0.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        [value], _ = CORES[loss.name](*query, labels, rows, tf.constant([-1]), **loss.hyper_parameters)
    by_similarity = tape.gradient(value, rows)[len(positives) :, 0]
    steps = [reference.sigmoid((s - positives[0]) / loss.hyper_parameters["temperature"]) for s in negatives]
    slopes = [step * (1 - step) / loss.hyper_parameters["temperature"] for step in steps]
    [rate, *others] = by_similarity / slopes
    np.testing.assert_allclose(others, rate, rtol=1e-9)
    return sum(steps), value, rate


# Similarities of negatives to a query whose positive has 0.2.
every_crowd = pytest.mark.parametrize(
    "negatives",
    [[-0.1, 0.0], [0.2, 0.21], [0.5, 0.15, -0.1], list(np.linspace(-0.1, 0.6, 12))],
    ids=lambda negatives: f"{len(negatives)} negatives",
)


@every_crowd
@pytest.mark.parametrize("variant", ["o", "iu", "ib", "ds", "dq"])
def test_curves_of_pnp_are_its_losses_and_their_gradients(variant, negatives):
    loss = losses.get("pnp", variant=variant, alpha=ALPHA, b=B, temperature=0.1)
    R, value, rate = loss_by_negatives(loss, [0.2], negatives)
    curves = figures.pnp_variants(np.array([R]), ALPHA, B)
    np.testing.assert_allclose(only(curves, variant), [value, rate], rtol=1e-9)
    np.testing.assert_allclose(rate, DERIVATIVES[variant](R), rtol=1e-9)


@every_crowd
@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_curves_of_ap_are_the_smooth_losses_and_their_gradients(others, negatives):
    """Other positives far before all rows add nothing but their number: R(i, S_P) is exactly theirs."""
    loss = losses.get("smooth_ap", temperature=0.1)
    R, value, rate = loss_by_negatives(loss, [0.2] + [100.0] * others, negatives)
    curves = figures.pnp_and_ap(np.array([R]))
    mean_over = 1 + others
    np.testing.assert_allclose(
        only(curves, f"AP, R(i, S_P) = {others}"), [value * mean_over, rate * mean_over], rtol=1e-9
    )


@every_crowd
def test_curve_of_pnp_beside_ap_is_dq_of_alpha_2(negatives):
    loss = losses.get("pnp", variant="dq", alpha=2.0, temperature=0.1)
    R, value, rate = loss_by_negatives(loss, [0.2], negatives)
    curves = figures.pnp_and_ap(np.array([R]))
    np.testing.assert_allclose(only(curves, "PNP-Dq, alpha = 2"), [value, rate], rtol=1e-9)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_pnp_are_the_papers(name):
    values, derivatives = figures.pnp_variants(COUNTS, ALPHA, B)[name]
    np.testing.assert_allclose(derivatives, [DERIVATIVES[name](R) for R in COUNTS], rtol=1e-12, atol=1e-15)
    assert values[0] == 0  # Nothing before the positive, nothing to lose.


def test_eq_6_is_drawn_with_its_integral_and_is_one_less_than_the_derivative_of_eq_7():
    curves = figures.pnp_variants(COUNTS)
    integral = [(1 + R) * math.log(1 + R) - R for R in COUNTS]
    np.testing.assert_allclose(curves["iu, eq. 6"][0], integral, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(curves["iu"][1] - curves["iu, eq. 6"][1], 1, rtol=1e-12)
    assert list(curves) == list(DERIVATIVES)


def test_derivatives_beside_each_other_are_eq_14_and_eq_11():
    curves = figures.pnp_and_ap(COUNTS)
    assert len(curves) == 5
    for P in range(4):
        eq_14 = [(1 + P) / (1 + P + R) ** 2 for R in COUNTS]
        np.testing.assert_allclose(curves[f"AP, R(i, S_P) = {P}"][1], eq_14, rtol=1e-12)
    eq_11 = [2 / (1 + R) ** 3 for R in COUNTS]
    np.testing.assert_allclose(curves["PNP-Dq, alpha = 2"][1], eq_11, rtol=1e-12)


DIFFERENCES = np.array([-1, -0.4, -0.1, -0.03, -0.01, 0, 0.005, 0.02, 0.1, 0.3, 1])


@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
def test_sigmoids_and_their_derivatives_are_the_closed_forms(temperature):
    values, derivatives = figures.steps(DIFFERENCES)[f"sigmoid, temperature {temperature:g}"]
    e = np.exp(-np.abs(DIFFERENCES) / temperature)
    np.testing.assert_allclose(values, np.where(DIFFERENCES < 0, e, 1) / (1 + e), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(derivatives, e / (1 + e) ** 2 / temperature, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "name, value, derivative",
    [
        ("indicator", lambda x: 1.0 if x > 0 else 0.0, lambda x: 0.0),
        ("linear", lambda x: x + 0.5, lambda x: 1.0),
        ("exponential", math.exp, math.exp),
    ],
)
def test_other_steps_and_their_derivatives_are_the_closed_forms(name, value, derivative):
    values, derivatives = figures.steps(DIFFERENCES)[name]
    np.testing.assert_allclose(values, [value(x) for x in DIFFERENCES], rtol=1e-12)
    np.testing.assert_allclose(derivatives, [derivative(x) for x in DIFFERENCES], rtol=1e-12)


@pytest.mark.parametrize(
    "draw, x",
    [
        (figures.pnp_variants, COUNTS + 0.01),
        (figures.pnp_and_ap, COUNTS + 0.01),
        (figures.steps, DIFFERENCES + 0.001),
    ],
    ids=lambda argument: getattr(argument, "__name__", ""),
)
def test_derivatives_are_the_slopes_of_the_values_above_them(draw, x):
    """By central differences; but for eq. 6, which is not the slope of eq. 7."""
    step = 1e-6
    here, above, below = draw(x), draw(x + step), draw(x - step)
    for name in here.keys() - {"iu, eq. 6"}:
        slopes = (above[name][0] - below[name][0]) / (2 * step)
        np.testing.assert_allclose(here[name][1], slopes, rtol=1e-6, atol=1e-8, err_msg=name)


# The command.


def draw(output):
    return run("-m", "experiments.figures", f"--output={output}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that the command had to make, with what it drew, and what it printed."""
    folder = tmp_path_factory.mktemp("figures") / "a" / "b"
    done = draw(folder)
    assert done.status == 0, done.errors[-3000:]
    return folder, done.output


# The pictures, with the curves in each column of panels: their colours in Matplotlib's order.
PICTURES = {"pnp_variants.png": [1] * 6, "pnp_and_ap.png": [5], "steps.png": [1] * 6}
COLOURS = [(0x1F, 0x77, 0xB4), (0xFF, 0x7F, 0x0E), (0x2C, 0xA0, 0x2C), (0xD6, 0x27, 0x28), (0x94, 0x67, 0xBD)]


@pytest.mark.parametrize("name", PICTURES)
def test_every_panel_of_a_picture_holds_its_curves(folder, name):
    """Values above, derivatives below."""
    pixels = np.round(matplotlib.image.imread(folder[0] / name)[:, :, :3] * 255).astype(int)
    height, width, _ = pixels.shape
    for row, column in np.ndindex(2, len(PICTURES[name])):
        columns = len(PICTURES[name])
        panel = pixels[
            row * height // 2 : (row + 1) * height // 2,
            column * width // columns : (column + 1) * width // columns,
        ]
        for colour in COLOURS[: PICTURES[name][column]]:
            # More than a legend's line has: a curve crosses its panel.
            crossed = np.any(np.all(panel == colour, axis=2), axis=0)
            assert crossed.sum() > panel.shape[1] / 10


def test_command_makes_the_folder_and_prints_what_it_drew(folder):
    folder, printed = folder
    assert sorted(path.name for path in folder.iterdir()) == sorted(PICTURES)
    assert printed.split() == [str(folder / name) for name in PICTURES]


@pytest.mark.slow
def test_file_in_the_way_of_the_folder_ends_with_a_message(tmp_path):
    in_the_way = tmp_path / "figures"
    in_the_way.write_text("mine")
    done = draw(in_the_way)
    assert done.status == 1
    assert "Traceback" not in done.errors and "--workdir" not in done.errors
    assert done.errors.splitlines()[-1].startswith(f"Error: Cannot write to {in_the_way} (File exists).")
    assert in_the_way.read_text() == "mine"
