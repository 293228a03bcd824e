"""Gathers the work of several requests, so that it is done together."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

# How many values a model embeds, or a search compares, at a time.
SIZE = 32


class _Task(NamedTuple):
    key: Hashable
    value: Any
    future: Future


class Batcher:
    """One thread that calls a function for the values of several requests at a time.

    Args:
        function: maps a key and the values with this key to a result for each; a result that is an exception
            is raised to the caller of that value.
        size: maximum number of values.
        wait_seconds: how long the first value waits for others.
    """

    def __init__(
        self,
        function: Callable[[Any, list], Sequence[Any]],
        *,
        size: int = SIZE,
        wait_seconds: float = 0.002,
    ):
        self._function, self._size, self._wait = function, size, wait_seconds
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def __call__(self, key: Hashable, value: Any) -> Any:
        """Returns the result for a value, together with others of an equal key."""
        future: Future = Future()
        self._queue.put(_Task(key, value, future))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Ends the thread after what it took is done."""
        self._queue.put(None)
        self._thread.join()

    def _run(self):
        for tasks in self._batches():
            groups: dict[Hashable, list[_Task]] = {}
            for task in tasks:
                # False if the request was given up meanwhile.
                if task.future.set_running_or_notify_cancel():
                    groups.setdefault(task.key, []).append(task)
            for key, group in groups.items():
                self._do(key, group)

    def _batches(self) -> Iterator[list[_Task]]:
        """Yields tasks as they come, up to `size` at a time."""
        going_on = True
        while going_on and (first := self._queue.get()):
            tasks, until = [first], time.monotonic() + self._wait
            while len(tasks) < self._size:
                try:
                    task = self._queue.get(timeout=max(0, until - time.monotonic()))
                except queue.Empty:
                    break
                if task is None:
                    going_on = False
                    break
                tasks.append(task)
            yield tasks

    def _do(self, key, group):
        try:
            results = self._function(key, [task.value for task in group])
        # Whatever it is, the request that caused it gets it.
        except Exception as error:
            if len(group) == 1:
                group[0].future.set_exception(error)
                return
            # One value must not spoil the others.
            for task in group:
                self._do(key, [task])
            return
        for task, result in zip(group, results):
            if isinstance(result, Exception):
                task.future.set_exception(result)
            else:
                task.future.set_result(result)
