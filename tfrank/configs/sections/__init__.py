"""The fields of a config, each declared once: its sections."""

from tfrank.configs.sections.data import Data
from tfrank.configs.sections.evaluation import Evaluation
from tfrank.configs.sections.model import Model
from tfrank.configs.sections.train import Train

__all__ = ["Data", "Evaluation", "Model", "Train"]
