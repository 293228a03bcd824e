"""The commands tfrank train and tfrank eval."""

from absl import flags

from tfrank.configs import letters
from tfrank.export.saved_model import saved_model_of
from tfrank.run import config_flag, trained

# A program is imported by its own command only: both define flags of the same names.


def train() -> None:
    """Runs tfrank train with the command line of this process."""
    from tfrank.run import train as program

    config_flag.run(program.main, lambda: letters.__file__)


def evaluate() -> None:
    """Runs tfrank eval with the command line of this process."""
    from tfrank.run import evaluate as program

    def config():
        saved_model = flags.FLAGS.model and saved_model_of(flags.FLAGS.model)
        return trained.config_of_run(flags.FLAGS.workdir, saved_model)

    config_flag.run(program.main, config)
