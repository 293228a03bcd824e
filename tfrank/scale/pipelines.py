"""Runs pipelines: Beam's own options, and errors of workers in one line."""

import argparse
import contextlib
import logging
import queue
import re
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from tfrank.common.checks import InputError, did_you_mean
from tfrank.common.progress import Progress
from tfrank.scale import storage

SECONDS_BETWEEN_LOOKS = 10
LOG_LEVEL = "--default_sdk_harness_log_level"
# What the direct runner says when a worker process has gone.
DIED = ("Channel closed prematurely", "Worker subprocess exited")
# How a worker's error reads after it went through a runner: with the name of the step, and further lines.
_INPUT_ERROR = re.compile(r"InputError: (.*?)(?: \[while running .*)?$", re.MULTILINE)
_SYSTEM_ERROR = re.compile(r"\[Errno \d+\] (.*?)(?: \[while running .*)?$", re.MULTILINE)


class _Parser(argparse.ArgumentParser):
    """Knows every option of Beam, and raises InputError where argparse would exit."""

    def __init__(self):
        super().__init__(allow_abbrev=False, add_help=False)
        for kind in dict.fromkeys(PipelineOptions.__subclasses__()):
            kind._add_argparse_args(self)

    def error(self, message):
        raise InputError(f"Beam: {message}.")

    # Beam's options are defined by these two, which ignore the ones that several classes define.
    def add_argument(self, *names, **about):
        try:
            return super().add_argument(*names, **about)
        except argparse.ArgumentError:
            return None

    def add_value_provider_argument(self, *names, **about):
        """Defines an option whose value may be given later."""
        return self.add_argument(*names, **about)


def beam_options(argv: Sequence[str], others: Sequence[str] = ()) -> PipelineOptions:
    """Returns Beam's options from a command line, such as `["--runner=DataflowRunner"]`.

    Args:
        argv: the options.
        others: names of flags that are no options of Beam, for "Did you mean".

    Raises:
        InputError: an option is unknown or has a bad value.
    """
    parser = _Parser()
    _, unknown = parser.parse_known_args(list(argv))
    if unknown:
        if not unknown[0].startswith("-"):
            raise InputError(f"{unknown[0]!r} is no flag. Flags begin with -- and have no spaces around =.")
        known = [name.lstrip("-") for action in parser._actions for name in action.option_strings]
        name = unknown[0].lstrip("-").split("=")[0]
        raise InputError(f"There is no flag --{name}.{did_you_mean(name, [*others, *known])}")
    # Workers of the direct runner print what they log, each of their steps by default.
    return PipelineOptions([f"{LOG_LEVEL}=ERROR", *argv])


class Watch(NamedTuple):
    """Shows how many files of a folder are there.

    Attributes:
        unit: what a file is, such as "shard".
        folder: a folder, local or remote.
        pattern: pattern of the names of the files.
        total: their number in the end.
        images: images of a file.
    """

    unit: str
    folder: str
    pattern: str
    total: int
    images: int

    def show(self, ended: threading.Event) -> None:
        """Shows progress until the event is set."""
        progress = None
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            with contextlib.suppress(InputError):  # The folder may not be there yet.
                done = len(storage.names(self.folder, self.pattern))
                progress = progress or Progress(self.unit, self.total, done=done)
                progress.show(done, images_per_step=self.images)


def run(build: Callable[[beam.Pipeline], None], options: PipelineOptions, watch: Watch | None = None) -> None:
    """Runs the pipeline that `build` makes, to its end.

    Args:
        build: adds the steps to a pipeline.
        options: see `beam_options`.
        watch: what to show progress by; None: nothing.

    Raises:
        InputError: a worker raised one, the runner is unknown, or it cannot start.
    """
    # The workers of the direct runner report every step of theirs.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    ended = threading.Event()
    if watch:
        threading.Thread(target=watch.show, args=(ended,), daemon=True).start()
    try:
        _run_to_end(build, options)
    except Exception as error:
        text = str(error)
        if isinstance(error, InputError) or "InputError: " in text:
            raise InputError(_INPUT_ERROR.findall(f"InputError: {text}")[-1]) from None
        if isinstance(error, ValueError) and "pipeline runner" in text:
            raise InputError(f"Beam: {' '.join(text.split())}") from None
        if any(words in text for words in DIED):
            raise InputError("A worker died; perhaps memory ran out. Run the same command again.") from None
        if found := _SYSTEM_ERROR.findall(text):
            hint = " Make room and run the same command again." if "No space left" in found[-1] else ""
            raise InputError(f"A worker failed: {found[-1].rstrip('.')}.{hint}") from None
        if "Direct" in (options.view_as(StandardOptions).runner or "Direct"):
            raise
        reason = f"{type(error).__name__}: {' '.join(text.split())[:300]}"
        raise InputError(f"The runner failed ({reason}). Its own log says more.") from None
    finally:
        ended.set()


def _run_to_end(build, options):
    """Runs a pipeline in a thread, since the direct runner waits for ever for a worker process that died."""
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work():
        try:
            pipeline = beam.Pipeline(options=options)
            build(pipeline)
            pipeline.run().wait_until_finish()
        except BaseException as error:
            outcome.put(error)
        else:
            outcome.put(None)

    def hear(failed):
        # The thread that waits for a worker process says how it ended; nobody else hears it.
        if failed.exc_value is not None and any(words in str(failed.exc_value) for words in DIED):
            outcome.put(failed.exc_value)

    before, threading.excepthook = threading.excepthook, hear
    try:
        threading.Thread(target=work, daemon=True).start()
        if (error := outcome.get()) is not None:
            raise error
    finally:
        threading.excepthook = before
