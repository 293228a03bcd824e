"""The commands tfrank train and tfrank eval."""

from absl import flags

from tfrank.configs import digits
from tfrank.run import config_flag, trained

# A program is imported by its own command only: both define flags of the same names.


def train() -> None:
    """Runs tfrank train with the command line of this process."""
    from tfrank.run import train as program

    config_flag.run(program.main, lambda: digits.__file__)


def evaluate() -> None:
    """Runs tfrank eval with the command line of this process."""
    from tfrank.run import evaluate as program

    values = flags.FLAGS
    config_flag.run(program.main, lambda: trained.config_of_run(values.workdir, values.saved_model))
