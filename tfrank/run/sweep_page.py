"""The page of a sweep: what the best trial had, the curves of all, and what each field matters."""

import base64
import csv
import importlib.resources
import io
import math
import os
from typing import Any

import jinja2
import optuna
from optuna.trial import FrozenTrial, TrialState

from tfrank.common import files

# Fewer finished trials do not say what a field matters.
FEWEST_FOR_IMPORTANCE = 8
# The attribute of a failed trial that says why.
ERROR = "error"
STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped", TrialState.FAIL: "failed"}


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Returns the trials that ended by themselves: not those that a stop of the sweep has ended."""
    done = (TrialState.COMPLETE, TrialState.PRUNED)
    return [trial for trial in study.trials if trial.state in done or ERROR in trial.user_attrs]


def best_of(study: optuna.Study) -> FrozenTrial | None:
    """Returns the finished trial with the highest value; None if none has finished."""
    return study.best_trial if study.get_trials(states=[TrialState.COMPLETE]) else None


def importances(study: optuna.Study) -> dict[str, float]:
    """Returns the share of the variance of mAP that each field explains, the largest first.

    {} if too few trials have finished, or their values are equal.
    """
    complete = study.get_trials(states=[TrialState.COMPLETE])
    if len(complete) < FEWEST_FOR_IMPORTANCE or len({trial.value for trial in complete}) == 1:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def write(study: optuna.Study, best: FrozenTrial, folder: str, *, command: str) -> list[str]:
    """Writes `sweep.html`, its two figures and `trials.csv` to a folder; returns their paths.

    Args:
        study: the study.
        best: the best trial.
        folder: the folder of the sweep.
        command: the command that trains with the best values.
    """
    trials, shares = finished(study), importances(study)
    fields = list(shares or best.params)
    figures = {"curves.png": _curves(trials, best), "fields.png": _fields(trials, best, fields)}
    for name, png in figures.items():
        with files.atomic_write(os.path.join(folder, name)) as file:
            file.write(png)
    with files.atomic_write(os.path.join(folder, "trials.csv"), "w") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "state", "validation_map", *fields])
        for number, trial in enumerate(trials, 1):
            values = (trial.params.get(field) for field in fields)
            writer.writerow([number, STATES[trial.state], _value(trial), *values])
    template = importlib.resources.files("tfrank.run").joinpath("sweep.html.jinja").read_text()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    html = environment.from_string(template).render(
        best=best,
        first=trials[0],
        command=command,
        counts={said: sum(trial.state == state for trial in trials) for state, said in STATES.items()},
        importances=shares,
        figures={name: base64.b64encode(png).decode() for name, png in figures.items()},
        rows=sorted(enumerate(trials, 1), key=lambda row: -_value(row[1])),
        fields=fields,
        value=_value,
        short=short,
        states=STATES,
    )
    with files.atomic_write(os.path.join(folder, "sweep.html"), "w") as file:
        file.write(html)
    return [os.path.join(folder, name) for name in ("sweep.html", *figures, "trials.csv")]


def short(value: Any) -> str:
    """Returns a value in few letters.

    >>> short(0.00012345), short("adam")
    ('0.000123', 'adam')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _value(trial: FrozenTrial) -> float:
    """Returns the best mAP of a trial, stopped ones too; 0 for one that was never evaluated."""
    # Of one that was stopped, Optuna has the last one as its value.
    return max(trial.intermediate_values.values(), default=trial.value or 0.0)


def _curves(trials, best) -> bytes:
    """Draws mAP of the validation classes against the step of each trial."""
    figure, (axes,) = _figure(1, width=9)
    for trial in trials:
        style = dict(color="tab:grey", linewidth=0.8, alpha=0.6)
        if trial.state == TrialState.COMPLETE:
            style = dict(color="tab:blue", linewidth=1)
        if trial.number == best.number:
            style = dict(color="tab:orange", linewidth=2.5, zorder=3)
        axes.plot(*zip(*sorted(trial.intermediate_values.items())), **style)
    for color, name in (("tab:orange", "best"), ("tab:blue", "finished"), ("tab:grey", "stopped")):
        axes.plot([], [], color=color, label=name)
    axes.set(xlabel="step", ylabel="mAP, validation classes")
    axes.legend()
    return _png(figure)


def _fields(trials, best, fields) -> bytes:
    """Draws the mAP of each trial against each field."""
    figure, all_axes = _figure(len(fields), width=4.5)
    for axes, field in zip(all_axes, fields):
        values = [trial.params[field] for trial in trials if field in trial.params]
        shown = values if all(isinstance(value, int | float) for value in values) else list(map(str, values))
        for trial, value in zip((trial for trial in trials if field in trial.params), shown):
            complete = trial.state == TrialState.COMPLETE
            color = "tab:orange" if trial.number == best.number else "tab:blue" if complete else "tab:grey"
            axes.plot(value, _value(trial), "o", color=color, alpha=1 if complete else 0.4)
        axes.set(xlabel=field, ylabel="mAP, validation classes")
        if getattr(best.distributions[field], "log", False):
            axes.set_xscale("log")
    return _png(figure)


def _figure(count, *, width):
    # Not pyplot: no window system, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(count, 3)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, 3.6 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()


def _png(figure) -> bytes:
    for axes in figure.axes:
        if not axes.lines:
            axes.remove()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
