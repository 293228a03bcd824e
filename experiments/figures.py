"""Draws the papers' figures of the shapes of losses, using the losses themselves.

    python -m experiments.figures [--output=figures]

writes `pnp_variants.png` (PNP Fig. 3: loss and derivative of each variant), `pnp_and_ap.png` (PNP Fig. 5:
the derivative of AP beside that of PNP-Dq) and `steps.png` (Smooth-AP Fig. 2: relaxations of the indicator
function, and their derivatives).
"""

import os
from collections.abc import Callable
from typing import get_args

import numpy as np
import tensorflow as tf
from absl import flags

from tfrank.common import commands, files
from tfrank.losses import smooth_ap
from tfrank.losses.core.ranks import hard_step, sigmoid_step
from tfrank.losses.pnp import Variant, penalty

_OUTPUT = flags.DEFINE_string("output", "figures", "Folder for the pictures; made if need be.")

# Maps a name to (values, derivatives) at some x.
Curves = dict[str, tuple[np.ndarray, np.ndarray]]


def _with_derivative(function: Callable[[tf.Tensor], tf.Tensor], x: np.ndarray):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y.numpy(), tape.gradient(y, x).numpy()


def pnp_variants(R: np.ndarray, alpha: float = 4.0, b: float = 4.0) -> Curves:
    """Loss and derivative of every variant of PNP at R(i, S_N) = R (PNP Fig. 3).

    "iu" is the loss of eq. 7. "iu, eq. 6" is the derivative that the paper states in eq. 6, and its integral.
    """
    curves = {}
    for variant in get_args(Variant):
        curves[variant] = _with_derivative(penalty(variant, alpha, b), R)
        if variant == "iu":
            curves["iu, eq. 6"] = (curves["iu"][0] - R, np.log1p(R))
    return curves


def pnp_and_ap(R: np.ndarray, alpha: float = 2.0) -> Curves:
    """The losses AP for R(i, S_P) = 0 to 3 and PNP-Dq, and their derivatives by R(i, S_N) (PNP Fig. 5)."""

    def ap(positives):
        return lambda negatives: smooth_ap.penalty(negatives, tf.constant(positives, R.dtype))

    curves = {f"AP, R(i, S_P) = {P}": _with_derivative(ap(P), R) for P in range(4)}
    curves[f"PNP-Dq, alpha = {alpha:g}"] = _with_derivative(penalty("dq", alpha, b=4.0), R)
    return curves


def steps(x: np.ndarray, temperatures: tuple[float, ...] = (0.01, 0.1, 1.0)) -> Curves:
    """The indicator function of a difference x, and its relaxations (Smooth-AP Fig. 2)."""
    curves = {"indicator": hard_step(tf.constant(x))}
    for temperature in temperatures:
        curves[f"sigmoid, temperature {temperature:g}"] = sigmoid_step(temperature)(tf.constant(x))
    curves = {name: tuple(curve.numpy() for curve in pair) for name, pair in curves.items()}
    curves["linear"] = _with_derivative(lambda x: x + 0.5, x)
    curves["exponential"] = _with_derivative(tf.exp, x)
    return curves


def draw(path: str, x: np.ndarray, curves: Curves, x_label: str, *, overlaid: bool) -> None:
    """Draws a PNG with the curves above their derivatives.

    Args:
        path: path of the PNG.
        x: `[points]`.
        curves: curves to draw.
        x_label: label under the panels.
        overlaid: whether all curves share a panel; if not, each has its own.
    """
    # Imported here, so that losses do not need a drawing library.
    from matplotlib.figure import Figure

    columns = 1 if overlaid else len(curves)
    figure = Figure(figsize=(6 if overlaid else 2.6 * columns, 6), layout="constrained")
    panels = figure.subplots(2, columns, squeeze=False)
    for number, (name, pair) in enumerate(curves.items()):
        for row, values in enumerate(pair):
            panel = panels[row, 0 if overlaid else number]
            panel.plot(x, values, label=name)
            panel.grid(alpha=0.3)
            if not overlaid:
                panel.set_title(name if row == 0 else "", fontsize=9)
    for row, words in enumerate(("loss" if overlaid else "value", "derivative")):
        panels[row, 0].set_ylabel(words)
        if overlaid:
            panels[row, 0].legend(fontsize=8)
    figure.supxlabel(x_label)
    with files.atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)


def main(_) -> None:
    """Draws all pictures."""
    folder = _OUTPUT.value
    files.make_folder(folder)
    R, difference = np.linspace(0, 10, 401), np.linspace(-1, 1, 801)
    count = "negatives before the positive, R(i, S_N)"
    drawn = {
        "pnp_variants.png": (R, pnp_variants(R), count, False),
        "pnp_and_ap.png": (R, pnp_and_ap(R), count, True),
        "steps.png": (difference, steps(difference), "difference of similarities", False),
    }
    for name, (x, curves, x_label, overlaid) in drawn.items():
        path = os.path.join(folder, name)
        draw(path, x, curves, x_label, overlaid=overlaid)
        print(path)


if __name__ == "__main__":
    commands.run(main)
