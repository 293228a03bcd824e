"""Writes shards in processes of this machine."""

import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from tfrank.common.progress import Progress
from tfrank.data.prepare import shards
from tfrank.data.prepare.shards import ShardTask, Written
from tfrank.data.prepare.workers import Counts, run_tasks
from tfrank.data.record_folder import open_split

# With fewer images, starting processes takes longer than it saves.
_MIN_IMAGES = 4_000


class Writer(Protocol):
    """Writes shards, on this machine or on others."""

    def write(self, tasks: Sequence[ShardTask]) -> Iterable[Written]:
        """Writes the shards that are missing; returns the result for each. Their indexes are local then."""

    def move(self, path: str, target: str) -> None:
        """Moves a written shard to its final place."""

    def check(self, folder: str, split: str) -> None:
        """Checks the records of a split that was written before; builds a missing index again."""


class Processes:
    """Writes shards in several processes of this machine, and shows progress.

    Args:
        count: number of processes; few images are written by this process alone.
    """

    def __init__(self, count: int):
        self._count = count

    def write(self, tasks: Sequence[ShardTask]) -> Iterable[Written]:
        """Writes the shards that are missing; returns the result for each."""
        total = sum(len(task.starts) for task in tasks)
        counts, results, left = Counts(), [], []
        for task in tasks:
            done = shards.finished(task)
            if done is None:
                left.append(task)
            else:
                results.append(done)
                counts.add(len(task.starts) - len(done.skipped), bad=len(done.skipped))
        begun = counts.done + counts.bad
        progress = None

        def show():
            # Start the clock at the first image, as starting the workers takes seconds.
            nonlocal progress
            if progress is None and counts.done + counts.bad > begun:
                progress = Progress("image", total, done=counts.done + counts.bad)
            elif progress:
                progress.show(counts.done + counts.bad, f"{counts.bad} skipped  " * (counts.bad > 0))

        count = min(self._count, len(left)) if total >= _MIN_IMAGES else 1
        return results + list(run_tasks(shards.write, left, counts=counts, processes=count, watch=show))

    def move(self, path: str, target: str) -> None:
        """Moves a written shard to its final place."""
        os.replace(path, target)

    def check(self, folder: str, split: str) -> None:
        """Checks the records of a split that was written before; builds a missing index again."""
        open_split(folder, split)
