"""The defaults of a run.

Each config file calls `get_config` here and changes what its data set needs. On the command line,
`--config=configs/letters.py:smooth_ap` selects another loss and `--config.train.steps=100` sets a field.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from tfrank import losses
from tfrank.common.checks import InputError, did_you_mean
from tfrank.configs.fields import Section, field
from tfrank.configs.sections import Data, Evaluation, Model, Train


@dataclasses.dataclass(slots=True)
class Config(Section):
    """A config: the fields of a run, in sections.

    `loss` has the name of a loss, and the hyper-parameters of its constructor with their defaults there.
    PNP's `warmup_steps` may be left open, -1: half of the run from random weights, else 0.
    """

    seed: int = field(
        0, "Seed of all randomness: the model's weights, the batches, the augmentation.", at_least=0
    )
    name: str = field("", "Name of the run; the default --workdir contains it.")
    dry_run: bool = field(
        False,
        "Only count the data, build everything, take two steps, and print what the whole run would take.",
        may_change=True,
    )
    data: Data = field(Data, "")
    model: Model = field(Model, "")
    loss: Any = field(None, "")
    train: Train = field(Train, "")
    evaluation: Evaluation = field(Evaluation, "")

    def assign(self, values: Mapping[str, Any]) -> None:
        """Sets fields by their paths, such as "train.steps"."""
        for path, value in values.items():
            *sections, name = path.split(".")
            setattr(functools.reduce(getattr, sections, self), name, value)


def get_config(loss: str = "") -> Config:
    """Returns the defaults for a loss, by its name in `tfrank.losses`; "" is "pnp"."""
    return Config(loss=loss_section(loss or "pnp"))


def loss_section(name: str) -> Any:
    """Returns `config.loss` for a loss: its name, and the hyper-parameters of its constructor.

    >>> loss_section("multi_similarity").beta
    50.0
    """
    if name not in losses.NAMES:
        raise InputError(
            f"Unknown loss {name!r} after the colon of --config.{did_you_mean(name, losses.NAMES)}"
            f" Expected one of {list(losses.NAMES)}."
        )
    return _loss_class(name)()


@functools.cache
def _loss_class(name):
    """Returns the class of the section of a loss."""
    values = {"name": name, **losses.hyper_parameters(name)}
    fields = [(key, type(value), field(value, "")) for key, value in values.items()]
    return dataclasses.make_dataclass(name, fields, bases=(Section,), slots=True)
