"""What the model of an index has learnt from, by which its own classes cannot be judged."""

import csv
import io
import os
from collections.abc import Sequence

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.export.saved_model import class_fingerprint, exported_contents, trained_classes

# In the folder of a model that an index has learnt: the groups that it was learnt from.
GROUPS = "groups.csv"


def groups_of(model: str) -> dict[str, str]:
    """Returns the groups that a model of an index was learnt from, by the id of each photo; {} for others.

    Raises:
        InputError: the file is damaged.
    """
    if not os.path.isfile(os.path.join(model, GROUPS)):
        return {}
    try:
        with files.open_below(model, GROUPS) as file:
            rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
            return {row[0]: row[1] for row in rows if len(row) == 2}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{os.path.join(model, GROUPS)} is damaged ({error}). Remove it.") from None


def trained(model: str, ids: Sequence[str], labels: Sequence[str]) -> set[str]:
    """Returns the fingerprints of the classes that a model was trained on, also under the names of today.

    Args:
        model: folder of the model of an index.
        ids, labels: of the images of the index.
    """
    groups = groups_of(model)
    renamed = {label for key, label in zip(ids, labels) if label and key in groups}
    return {*trained_classes(exported_contents(model)), *map(class_fingerprint, renamed)}
