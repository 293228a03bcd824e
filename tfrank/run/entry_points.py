"""The commands tfrank-train and tfrank-eval."""

import os

from tfrank.run import config_flag, trained

# A program is imported by its own command only: both define flags of the same names.


def train() -> None:
    """Runs tfrank-train with the command line of this process."""
    from tfrank.run import train as program

    config_flag.run(program.main, os.path.join(config_flag.PACKAGE, "configs", "digits.py"))


def evaluate() -> None:
    """Runs tfrank-eval with the command line of this process."""
    from tfrank.run import evaluate as program

    config_flag.run(program.main, lambda argv: trained.config_of_run(argv, config_flag.PACKAGE))
