"""One line of progress: rewritten in place on a terminal, a new line now and then elsewhere."""

import sys
import time

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Shows how far a long piece of work is, how fast it goes and when it will end.

    Args:
        what: the unit of work, as in "step".
        total: how many there are.
        done: how many were done before, in an earlier process.
        rate: the unit of how fast it goes.
    """

    def __init__(self, what: str, total: int, *, done: int = 0, rate: str = "images"):
        self._what, self._total, self._first, self._rate = what, total, done, rate
        self._start = time.monotonic()
        self._last = self._start
        self._in_place = sys.stdout.isatty()

    def show(self, done: int, text: str = "", *, images_per_step: int = 1, always: bool = False) -> None:
        """Shows that `done` are done; off a terminal only now and then, unless `always`."""
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
        print(f"\r{line}\x1b[K" if self._in_place else line, end=end, flush=True)

    def say(self, message: str) -> None:
        """A line of its own."""
        print(f"\r{message}\x1b[K" if self._in_place else message, flush=True)
