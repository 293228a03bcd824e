"""How often each image of an index was found, which servers count: an upgrade begins with the most found."""

import collections
import json
import os
from collections.abc import Mapping

from tfrank.common import files, json_files

FILE = "times_found.json"
# So many images are kept, the most found.
MOST_IMAGES = 100_000
_COUNTS = json_files.dict_of(json_files.whole(1))
_REMEDY = "Delete it: the counts begin anew."


def counts_of(folder: str) -> collections.Counter[str]:
    """Returns how often each image of an index was among the first results, by id.

    Raises:
        InputError: the file is damaged.
    """
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return collections.Counter()
    return collections.Counter(json_files.read(path, _COUNTS, _REMEDY))


def add(folder: str, counts: Mapping[str, int]) -> None:
    """Adds to the counts of an index. Several servers may do so at once.

    Raises:
        InputError: the file is damaged.
        OSError: it cannot be written.
    """
    # The lock of the temporary file lasts until it takes the place of the file.
    with files.atomic_write(os.path.join(folder, FILE), "w") as file:
        together = counts_of(folder) + collections.Counter(counts)
        file.write(json.dumps(dict(together.most_common(MOST_IMAGES))))
