"""The parts of training, and which model of a run is trained, evaluated and exported."""

import dataclasses
import functools

import keras
import tensorflow as tf

from tfrank.models.embedding import concatenate_embeddings
from tfrank.training.averaging import WeightAverage
from tfrank.training.checkpoints import Checkpoints
from tfrank.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Training:
    """The parts of training.

    Attributes:
        model: the trained model, on all devices.
        copy: a copy on one device; see `update_copy`.
        tested: the copy, or another one if the images of tests are of another size; see `update_tested`.
        optimizer, average, checkpoints, trainer, strategy: `average` is None without weight averaging.
        workdir: folder of the run.
    """

    model: keras.Model
    copy: keras.Model
    tested: keras.Model
    optimizer: keras.optimizers.Optimizer
    average: WeightAverage | None
    checkpoints: Checkpoints
    trainer: Trainer
    strategy: tf.distribute.Strategy
    workdir: str

    @functools.cached_property
    def serving(self) -> keras.Model:
        """`tested` with one embedding per image, which is exported: several levels are concatenated."""
        return concatenate_embeddings(self.tested)

    def update_copy(self) -> None:
        """Copies the current weights into the copy, or their average if one is kept."""
        averages = iter(self.average.variables if self.average else [])
        for to, source in zip(self.copy.variables, self.model.variables):
            averaged = self.average and to.value.dtype.is_floating
            to.assign(next(averages) if averaged else source.value)
        self.update_tested()

    def update_tested(self) -> None:
        """Copies the weights of the copy into `tested`."""
        if self.tested is not self.copy:
            assign(self.tested, self.copy)


def assign(model: keras.Model, source: keras.Model) -> None:
    """Gives a model the weights of another one."""
    for to, variable in zip(model.variables, source.variables):
        to.assign(variable.numpy())
