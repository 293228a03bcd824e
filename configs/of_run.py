"""The config of a run that was made before, as its workdir has it.

The config itself: tfrank/configs/of_run.py
"""

from tfrank.configs.of_run import get_config  # noqa: F401
