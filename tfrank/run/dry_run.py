"""A dry run: what a training run would take."""

import contextlib
import time

import tensorflow as tf

from tfrank.configs.default import Config
from tfrank.run import settings
from tfrank.run.datasets import Data, build_batches
from tfrank.run.embedding import embed_fn, image_batches
from tfrank.run.parts import Training
from tfrank.training.estimate import memory_estimate


def dry_run(config: Config, training: Training, data: Data, steps: int) -> None:
    """Builds everything, takes two steps and embeds one batch; prints what the whole run would take."""
    batch_size = config.data.batch_size
    bytes_of = memory_estimate(
        training.model,
        training.optimizer,
        batch_size=batch_size,
        replicas=training.strategy.num_replicas_in_sync,
        micro_batch_size=config.train.micro_batch_size,
    )
    print(f"{training.model.count_params():,} parameters; memory of a device, estimated:")
    for what, size in {**bytes_of, "in all": sum(bytes_of.values())}.items():
        print(f"{what:>16} {size / 2**20:10,.1f} MiB")
    batches, explain = build_batches(config.data, data.train, stop=2, seed=config.seed, stored=data.stored)
    first, second = training.trainer.time_steps(lambda context: batches(0, context), explain)
    started = time.monotonic()
    with contextlib.closing(image_batches(config.data, config.evaluation, data.test)) as images:
        batch = next(images)
    embed_fn(training.serving)(tf.cast(batch["image"], tf.float32))
    per_image = (time.monotonic() - started) / len(batch["label"])
    evaluations = settings.evaluations(config.train, steps) if data.validation else 0
    seconds = {
        "the first step": first,
        "a step": second,
        "training": first + steps * second,
        "evaluating": per_image * (evaluations * len(data.validation or ()) + len(data.test)),
    }
    for what, number in seconds.items():
        print(f"{what:>16} {number:10,.2f} s")
    print("Nothing was trained or saved. Without --config.dry_run the same command does it.")
