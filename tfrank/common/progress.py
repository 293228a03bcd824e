"""A line of progress: rewritten in place on a terminal, else printed anew every ten seconds or so."""

import sys
import time

SECONDS_BETWEEN_LINES = 10.0
# Clears the rest of a line of a terminal.
CLEAR = "\x1b[K"


class Progress:
    """Shows the progress, speed and remaining time of a long task.

    Args:
        what: unit of work, such as "step".
        total: number of units.
        done: number of units that an earlier process finished.
        rate: unit of the speed: `rate` per second.
    """

    def __init__(self, what: str, total: int, *, done: int = 0, rate: str = "images"):
        self._what, self._total, self._first, self._rate = what, total, done, rate
        self._start = time.monotonic()
        self._last = self._start
        self._in_place = sys.stdout.isatty()

    def show(self, done: int, text: str = "", *, images_per_step: int = 1, always: bool = False) -> None:
        """Shows `done` units as finished; outside a terminal at most every ten seconds, unless `always`."""
        now = time.monotonic()
        if not self._in_place and not always and now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = (done - self._first) / max(now - self._start, 1e-9)
        left = int((self._total - done) / rate) if rate else 0
        line = (
            f"{self._what} {done}/{self._total}  {text}{rate * images_per_step:,.0f} {self._rate}/s"
            f"  ETA {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        )
        end = "\n" if done >= self._total or not self._in_place else ""
        print(f"\r{line}{CLEAR}" if self._in_place else line, end=end, flush=True)

    def say(self, message: str) -> None:
        """Prints a message on a line of its own."""
        print(f"\r{message}{CLEAR}" if self._in_place else message, flush=True)
