"""Config of an earlier run, as saved in its workdir.

    python eval_main.py --config=configs/of_run.py:runs/digits_pnp/config.json

`eval_main.py --workdir=runs/digits_pnp` uses it automatically. Fields added after the run have their
defaults. Fields that no longer exist are ignored.
"""

from ml_collections import ConfigDict

from tfrank.common import json_files
from tfrank.common.checks import InputError
from tfrank.configs import default

_SAVED = json_files.record({"loss": json_files.record({"name": json_files.text()}, others=True)}, others=True)
_REMEDY = "Give the config that the run was trained by, --config=FILE.py:LOSS"


def get_config(path: str = ""):
    try:
        saved = json_files.read(path, _SAVED, _REMEDY)
    except FileNotFoundError:
        raise InputError(f"There is no file {path}. {_REMEDY}") from None
    try:
        config = default.get_config(saved["loss"]["name"])
        _update(config, saved)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} is damaged, or of another version of tfrank"
            f" ({type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}). {_REMEDY}"
        ) from None
    return config


def _update(config, saved):
    """Copies the saved values into the config. A tuple field turns a saved list into a tuple."""
    for name, value in saved.items():
        if name not in config and config.is_locked:
            continue
        if isinstance(config.get(name), ConfigDict) and config[name].is_locked:
            _update(config[name], value)
        else:
            config[name] = value
