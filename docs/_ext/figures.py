"""Pictures of a loss, drawn by the loss itself: its value and slope, and a batch before and after a step."""

import pathlib
from typing import NamedTuple

import matplotlib
import numpy as np
import tensorflow as tf
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.target_loss import TargetLoss
from tfrank.losses.proxies import ProxyLoss

# Readable on white and on black; text is set in the typeface of the page.
GREY, BLUE, ORANGE, GREEN = "#888888", "#2a7fd4", "#e0742c", "#2f9e5b"
STYLE = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "svg.fonttype": "none",
    "svg.hashsalt": "tfrank",
    "font.size": 10,
}
# The curves: a query with two positives, one of this similarity, and with 14 negatives.
PADDED = np.asarray([0.5, 0.6, *np.linspace(-0.15, 0.45, 13), -0.3])
# The step: the degrees on the circle of the rows of each class, and of its proxy, or as a teacher has them.
DEGREES = ((10, 35, 50, 75, 200), (95, 120, 130, 60, 165), (230, 250, 262, 285, 20, 335))
PROXY_DEGREES = (0, 140, 240)
LABELS = np.repeat(range(len(DEGREES)), [len(rows) for rows in DEGREES])
TEACHER_DEGREES = np.concatenate(
    [50 + 120 * c + 8.0 * np.arange(len(rows)) for c, rows in enumerate(DEGREES)]
)
LARGEST_MOVE = 20.0
NOTHING = np.zeros([0, 2])
ROWS = len(LABELS)
SIMILARITIES = np.linspace(-0.3, 0.95, 101)


class Curve(NamedTuple):
    """The loss against one variable, `[points]` each: the variable, the loss and its slope."""

    x: np.ndarray
    loss: np.ndarray
    slope: np.ndarray


class Step(NamedTuple):
    """Degrees on the circle before and after a step, of a batch, and of proxies or a teacher's embeddings.

    `[rows]` of the batch, `[stars]` of the others, and the classes of these.
    """

    before: np.ndarray
    after: np.ndarray
    stars_before: np.ndarray
    stars_after: np.ndarray
    star_labels: np.ndarray


def curves_and_step(
    loss: RankingLoss | ProxyLoss | TargetLoss, *, of_batch: bool = False
) -> tuple[dict[str, Curve], Step]:
    """What the pictures of a loss show: curves by what the variable is called, and a step.

    Args:
        loss: the loss.
        of_batch: whether the loss of a query depends on the other queries, such as by a histogram of all.
    """
    if isinstance(loss, ProxyLoss):
        return _of_proxies(loss)
    return _of_teacher(loss) if hasattr(loss, "against") else _of_pairs(loss, of_batch)


def _of_pairs(loss, of_batch):
    """Of the curves, a query against 16 rows, of which one moves; all queries of a curve are one batch.

    The queries are a u + b v + c w of unit norm, the row that moves is p u + r v + o e, and the others are
    s / a u + sqrt(1 - s^2 / a^2) e_j; all of u, v, w and e are orthogonal. So b alone changes the similarity
    of that row, a p + b r, and the slope by it is the gradient by the query along e, divided by o.
    """
    a, p, o = 0.62, 0.45, 0.25  # So that the similarities reach from -0.3 to 0.95.
    r = np.sqrt(1 - p**2 - o**2)

    def scored(query_labels, queries, labels, gallery, self_index):
        """The loss of each query, and the gradients as of the mean of 16 by queries and by gallery."""
        with tf.GradientTape() as tape:
            tape.watch([queries, gallery])
            losses, _ = loss.score(query_labels, queries, labels, gallery, self_index)
            mean = tf.reduce_sum(losses) / ROWS
        return losses, *tape.gradient(mean, [queries, gallery], unconnected_gradients="zero")

    # XLA takes longer to compile a loss than TensorFlow to compute it three times.
    run = tf.function(scored) if of_batch else _eager(scored)

    def at(query_labels, queries, labels, gallery, self_index):
        queries, gallery = (tf.constant(rows, tf.float32) for rows in (queries, gallery))
        return [x.numpy() for x in run(query_labels, queries, labels, gallery, self_index)]

    def curve(row):
        b = (SIMILARITIES - a * p) / r
        queries = np.stack([np.full_like(b, a), b, np.sqrt(1 - a**2 - b**2)], axis=1)
        others = np.stack([PADDED / a, 0 * PADDED, 0 * PADDED], axis=1)
        gallery = np.hstack([others, np.diag(np.sqrt(1 - (PADDED / a) ** 2))])
        gallery[row] = np.concatenate([[p, r, 0], o * np.eye(ROWS)[row]])
        labels = np.asarray([1, 1, *[0] * (ROWS - 2)])
        # A batch of a loss of the batch is one point of the curve, ROWS times; else all points are a batch.
        batches = np.repeat(queries[:, None], ROWS, axis=1) if of_batch else queries[None]
        points = []
        for batch in np.pad(batches, [(0, 0), (0, 0), (0, ROWS)]):
            ones = np.ones(len(batch), int)
            losses, gradient, _ = at(ones, batch, labels, gallery, -ones)
            points += [*zip(losses, ROWS * gradient[:, 3 + row] / o)]
        return Curve(SIMILARITIES, *np.transpose(points[:: len(points) // len(SIMILARITIES)]))

    batch = np.pad(_on_circle(np.concatenate(DEGREES)), [(0, 0), (0, ROWS + 1)])
    _, *gradients = at(LABELS, batch, LABELS, batch, np.arange(ROWS))
    curves = {"similarity of a positive": curve(0), "similarity of a negative": curve(ROWS - 2)}
    return curves, _step(batch[:, :2], sum(gradients)[:, :2])


def _eager(function):
    """The function as TensorFlow runs it without compiling anything."""

    def run(*arguments):
        tf.config.run_functions_eagerly(True)
        try:
            return function(*arguments)
        finally:
            tf.config.run_functions_eagerly(False)

    return run


def _of_proxies(loss):
    """Of the curves, a row and its cosines with its own proxies and with those of two other classes."""

    @tf.function
    def scored(labels, cosines):
        with tf.GradientTape() as tape:
            tape.watch(cosines)
            value = loss(labels, cosines)
        return value, tape.gradient(value, cosines)

    def curve(number):
        points = []
        for s in SIMILARITIES:
            moved = np.where(np.arange(len(cosines)) == number, s, cosines)
            value, gradient = scored(np.zeros(1, np.int64), tf.constant(moved[None], tf.float32))
            points.append((float(value), float(gradient[0, number])))
        return Curve(SIMILARITIES, *np.transpose(points))

    of_class = loss.proxies_per_class if hasattr(loss, "proxies_per_class") else 1
    cosines = np.repeat([0.3, 0.2, 0.4], of_class)
    batch, degrees = _on_circle(np.concatenate(DEGREES)), np.repeat(PROXY_DEGREES, of_class).astype(float)
    proxies = _on_circle(degrees + 40 * (np.arange(len(degrees)) % of_class))
    _, gradient = scored(LABELS, tf.constant(batch @ proxies.T, tf.float32))
    star_labels = np.repeat(range(len(DEGREES)), of_class)
    step = _step(batch, gradient.numpy() @ proxies, proxies, gradient.numpy().T @ batch, star_labels)
    return {"cosine with the own proxy": curve(0), "cosine with another proxy": curve(len(cosines) - 1)}, step


def _of_teacher(loss):
    """Of the curve, one row leaves the place that the teacher gives it, where all others are."""
    teacher = _on_circle(TEACHER_DEGREES)

    @tf.function
    def scored(rows):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            value = loss.against(LABELS, rows, tf.constant(teacher, tf.float32))
        return value, tape.gradient(value, rows)

    def at(degrees):
        """The sum of the loss over the batch, and its slope by the degrees of each row."""
        rows = _on_circle(degrees)
        value, gradient = scored(tf.constant(rows, tf.float32))
        return ROWS * float(value), np.radians(ROWS * _along(rows, gradient.numpy()))

    away = np.linspace(-180, 180, 121)
    values, slopes = zip(*(at(TEACHER_DEGREES + angle * np.eye(ROWS)[0]) for angle in away))
    curve = Curve(away, np.asarray(values), np.asarray(slopes)[:, 0])
    batch = _on_circle(np.concatenate(DEGREES))
    _, gradient = scored(tf.constant(batch, tf.float32))
    step = _step(batch, gradient.numpy(), teacher, 0 * teacher, LABELS)
    return {"degrees from the teacher's embedding": curve}, step


def _step(batch, gradient, stars=NOTHING, gradient_of_stars=NOTHING, star_labels=()) -> Step:
    """Everything moves along the circle against its gradient; the largest move has LARGEST_MOVE degrees."""
    moves = [-_along(x, g) for x, g in ((batch, gradient), (stars, gradient_of_stars))]
    rate = LARGEST_MOVE / max(np.abs(np.concatenate(moves)).max(), 1e-9)
    before = [np.degrees(np.arctan2(x[:, 1], x[:, 0])) for x in (batch, stars)]
    after = [degrees + rate * move for degrees, move in zip(before, moves)]
    return Step(before[0], after[0], before[1], after[1], np.asarray(star_labels, int))


def _along(x, gradient):
    return x[:, 0] * gradient[:, 1] - x[:, 1] * gradient[:, 0]


def _on_circle(degrees) -> np.ndarray:
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)


def draw_curves(path: pathlib.Path, curves: dict[str, Curve]) -> None:
    """Draws the loss above its slope, a column for each curve."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 4.2))
        panels = figure.subplots(2, len(curves), sharex="col", sharey="row", squeeze=False)
        figure.subplots_adjust(left=0.12, right=0.98, bottom=0.12, top=0.97, hspace=0.12, wspace=0.1)
        for column, (name, curve) in enumerate(curves.items()):
            colour = (BLUE, ORANGE)[column]
            panels[0, column].plot(curve.x, curve.loss, color=colour, linewidth=2)
            panels[1, column].plot(curve.x, curve.slope, color=colour, linewidth=2)
            panels[1, column].axhline(0, color=GREY, linewidth=0.6)
            panels[1, column].set_xlabel(name)
        panels[0, 0].set_ylabel("loss")
        panels[1, 0].set_ylabel("slope")
        figure.align_ylabels()
        _save(figure, path)


def draw_step(path: pathlib.Path, step: Step) -> None:
    """Draws the batch on the circle, and where a step takes it."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.9))
        before, after = figure.subplots(1, 2)
        figure.subplots_adjust(left=0, right=1, bottom=0, top=0.93, wspace=0)
        for panel, title, degrees, stars in (
            (before, "before, and where the gradient leads", step.before, step.stars_before),
            (after, "after the step", step.after, step.stars_after),
        ):
            panel.set_title(title, fontsize=10)
            panel.add_patch(matplotlib.patches.Circle((0, 0), 1, fill=False, color=GREY, linewidth=0.6))
            panel.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
            panel.axis("off")
            _scatter(panel, degrees, LABELS, marker="o", s=70)
            _scatter(panel, stars, step.star_labels, marker="*", s=190)
        starts = np.concatenate([step.before, step.stars_before])
        ends = np.concatenate([step.after, step.stars_after])
        for start, end in zip(starts, ends):
            if abs(end - start) > 0.5:
                points = (1.14 * _on_circle(np.linspace(start, end, 9))).T
                before.plot(*points, color=GREY, linewidth=1.2)
                before.annotate(
                    "", points[:, -1], points[:, -3], arrowprops={"arrowstyle": "->", "color": GREY}
                )
        _save(figure, path)


def _scatter(panel: Axes, degrees, labels, **options):
    colours = [(BLUE, ORANGE, GREEN)[label] for label in labels]
    panel.scatter(*_on_circle(degrees).T, c=colours, edgecolors=GREY, linewidths=0.6, zorder=3, **options)


def _save(figure: Figure, path: pathlib.Path):
    figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
