"""Fits a run into a time: fewer views of images and fewer steps where the machine is too slow for all."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfrank.configs.default import Config
from tfrank.configs.fields import OPEN
from tfrank.data.index import select
from tfrank.run import frozen_backbone, settings
from tfrank.run.datasets import Data
from tfrank.run.embedding import embed_all, embed_fn, images_at_once
from tfrank.run.experiment import build_model
from tfrank.run.matches import STRANGERS

# At least so many images are embedded to time the machine, after a batch that pays for the start.
TIMED = 96
# At most so many of them at once, and so many in a pass through the part that is trained.
TIMED_AT_ONCE = 32
# A step goes forward and backward, which takes so many times a pass forward: 3.9 of the last two stages of
# EfficientNet-Lite0.
STEP = 4
# Seconds for what is not timed: building models, the report, the export.
REST = 30.0


class Costs(NamedTuple):
    """Seconds that an image takes.

    Attributes:
        embed: the whole network, at the size of tests, reading included.
        store: the part that stays as it is, at the size of training, reading included; 0 without one.
        train: a pass forward through the part that is trained.
    """

    embed: float
    store: float
    train: float


class Length(NamedTuple):
    """The length of a run: the views of each image that are stored, and the steps."""

    views: int
    steps: int


def within_minutes(config: Config, fitted: Config, *, data: Data, started: float) -> dict[str, int]:
    """Returns as many of a run's views and steps as `train.minutes` have time for, as far as they are open.

    Times the machine on some images, and prints what it chose and in how many minutes all would be done. The
    fewest views and steps are taken even if there is no time for them, and that is printed. Nothing changes
    without a limit, or if neither views nor steps are open.

    Args:
        config: the config of a run.
        fitted: the same with the open fields filled in.
        data: the records of the run.
        started: when the run began, by `time.monotonic`.
    """
    train = config.train
    views_open = train.is_partly_frozen and train.feature_views == OPEN
    steps_open = train.steps == OPEN and not train.epochs
    if not train.minutes or config.dry_run or not (views_open or steps_open):
        return {}
    wanted, costs = Length(fitted.train.feature_views, fitted.train.steps), measured(fitted, data)

    def seconds(length: Length) -> float:
        return time.monotonic() - started + seconds_of(fitted, data, costs, length)

    limit = 60 * train.minutes
    limited = fit_into(limit, seconds, wanted, views_open=views_open, steps_open=steps_open)
    if limited != wanted or seconds(wanted) > limit:
        print(_in_words(train.minutes, wanted, limited, seconds), flush=True)
    changed = {"feature_views": limited.views} if views_open else {}
    return changed | ({"steps": limited.steps} if steps_open else {})


def fit_into(
    limit: float,
    seconds: Callable[[Length], float],
    wanted: Length,
    *,
    views_open: bool = True,
    steps_open: bool = True,
) -> Length:
    """Returns the longest run that fits into a limit; the shortest one if none does.

    Of the views and the steps the same share is kept, as far as they are open: at least one view, and
    `settings.FEWEST_STEPS` or all steps. More of the steps are kept where the views cannot be fewer.

    >>> fit_into(60, lambda length: 10 * length.views + 0.1 * length.steps, Length(views=5, steps=400))
    Length(views=3, steps=300)
    """
    fewest = min(wanted.steps, settings.FEWEST_STEPS) if steps_open else wanted.steps
    for views in range(wanted.views, 0, -1) if views_open else [wanted.views]:
        share = views / wanted.views if views_open and views > 1 else 0.0
        least = max(fewest, math.floor(share * wanted.steps)) if steps_open else wanted.steps
        if seconds(Length(views, least)) <= limit:
            steps = range(least, wanted.steps + 1)
            fitting = np.searchsorted([seconds(Length(views, step)) for step in steps], limit, side="right")
            return Length(views, steps[int(fitting) - 1])
    return Length(1 if views_open else wanted.views, fewest)


def seconds_of(config: Config, data: Data, costs: Costs, length: Length) -> float:
    """Returns the seconds from the stored features to the report of a run."""
    held_out = len(data.validation) if data.validation is not None else 0
    strangers = min(STRANGERS, len(data.train)) if held_out else 0
    models = 2 if config.evaluation.baselines else 1
    evaluations = settings.evaluations(config.train, length.steps)
    stored = length.views * len(data.train) + held_out if config.train.is_partly_frozen else 0
    # The head is computed before and after training.
    of_head = 2 * length.views * len(data.train) if config.model.head == "whitened" else 0
    return (
        REST
        + costs.store * stored
        + costs.train * (STEP * length.steps * config.data.batch_size + evaluations * held_out + of_head)
        + costs.embed * (models * len(data.test) + held_out + strangers)
    )


def measured(config: Config, data: Data) -> Costs:
    """Returns what an image costs on this machine, with random weights, as they take the same time."""

    def reading(model, evaluation):
        function, size = embed_fn(model), min(TIMED_AT_ONCE, images_at_once(config.data, evaluation))
        evaluation = dataclasses.replace(evaluation, batch_size=size)

        def seconds(batches):
            images = select(data.test, np.arange(batches * size) % len(data.test))
            return _seconds(lambda: embed_all(config.data, evaluation, function, images))

        seconds(1)  # It builds the graph.
        more = math.ceil(TIMED / size)
        of_batches = seconds(1 + more) - seconds(1)
        return max(0.0, of_batches) / (more * size)

    def alone(model):
        function = embed_fn(model)
        batch = tf.zeros([TIMED_AT_ONCE, *model.input_shape[1:]])
        function(batch)
        return _seconds(lambda: function(batch)) / TIMED_AT_ONCE

    whole = build_model(config)
    embed = reading(build_model(config, for_tests=True), config.evaluation)
    if not config.train.is_partly_frozen:
        return Costs(embed, 0.0, alone(whole))
    trained = alone(frozen_backbone.split(config, whole)[1])
    at_training = reading(whole, config.evaluation.at_training_size())
    return Costs(embed, max(0.0, at_training - trained), trained)


def _seconds(call):
    start = time.monotonic()
    call()
    return time.monotonic() - start


def _in_words(minutes, wanted, limited, seconds):
    whole, part = math.ceil(seconds(wanted) / 60), math.ceil(seconds(limited) / 60)
    kept = [f"{limited.steps:,} of {wanted.steps:,} steps"] if limited.steps < wanted.steps else []
    if limited.views < wanted.views:
        kept.insert(0, f"{limited.views} of {wanted.views} views of each training image")
    what = " and ".join(kept)
    if part > minutes:
        of_part = f" With {what} it takes about {part}." if kept else ""
        return f"Note: {minutes:g} minutes do not suffice. The run takes about {whole} minutes.{of_part}"
    return (
        f"In {minutes:g} minutes there is time for {what}. --config.train.minutes={whole} has time for all."
    )
