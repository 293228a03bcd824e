"""Config of an earlier run, as saved in its workdir.

    python eval_main.py --config=configs/of_run.py:runs/letters_pnp/config.json

`eval_main.py --workdir=runs/letters_pnp` uses it automatically. Fields added after the run have their
defaults. Fields that no longer exist are ignored.
"""

import dataclasses

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


def _update(section, saved):
    """Copies the saved values into a section."""
    known = {field.name for field in dataclasses.fields(section)}
    for name, value in saved.items():
        if name in known and dataclasses.is_dataclass(inner := getattr(section, name)):
            _update(inner, value)
        elif name in known:
            setattr(section, name, value)
