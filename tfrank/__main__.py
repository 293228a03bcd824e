"""The command `tfrank`: a verb for each thing to do.

tfrank VERB --help
"""

import importlib
import sys
from typing import NamedTuple

from tfrank.common.checks import did_you_mean
from tfrank.common.commands import HELP


class Verb(NamedTuple):
    """What a verb does, in a few words; the function that runs it, and the extra that it needs."""

    does: str
    module: str
    function: str
    extra: str = ""


# In the order in which a person needs them.
VERBS = {
    "photos": Verb("search a folder of photos, without labels", "tfrank.search.photos", "command", "serve"),
    "prepare": Verb("check photos and write records", "tfrank.data.prepare.__main__", "command"),
    "train": Verb("train a model, measure it and export it", "tfrank.run.entry_points", "train"),
    "eval": Verb("measure a run, a SavedModel or embeddings", "tfrank.run.entry_points", "evaluate"),
    "sweep": Verb("search for better fields of a config", "tfrank.run.sweep", "command", "tune"),
    "index": Verb("put photos into an index", "tfrank.search.command", "command", "serve"),
    "compat": Verb("map embeddings of an old model to a new one", "tfrank.search.compat", "command", "serve"),
    "serve": Verb("open a page that searches an index", "tfrank.search.server.command", "command", "serve"),
    "improve": Verb("let an index learn from its labels", "tfrank.improve.command", "command", "serve"),
    "review": Verb("list labels that look wrong", "tfrank.search.review", "command", "serve"),
    "export": Verb("write TensorFlow Lite or ONNX, and a model card", "tfrank.export.__main__", "command"),
    "scale": Verb("do all that on many machines", "tfrank.scale.entry_points", "scale"),
    "completion": Verb("complete verbs and flags by Tab in a shell", "tfrank.completion", "command"),
}


def usage() -> str:
    """Returns what there is to do.

    >>> print(usage().splitlines()[3])
      tfrank photos      search a folder of photos, without labels
    """
    width = max(map(len, VERBS))
    lines = (f"  tfrank {name.ljust(width)}  {verb.does}" for name, verb in VERBS.items())
    verbs = "\n".join(lines)
    return f"Image retrieval by optimising the ranking.\n\nVerbs:\n{verbs}\n\ntfrank VERB --help: its flags."


def main() -> None:
    """Runs a verb with the rest of the command line of this process."""
    program, *words = sys.argv
    name = words[0] if words else "help"
    if name in HELP | {"help"}:
        print(usage())
        return
    if name not in VERBS:
        known = f"Verbs are {', '.join(VERBS)}."
        sys.exit(f"Error: There is no `tfrank {name}`. {known}{did_you_mean(name, VERBS)}")
    verb = VERBS[name]
    sys.argv = [program, *words[1:]]
    try:
        module = importlib.import_module(verb.module)
    except ImportError as error:
        if not verb.extra:
            raise
        sys.exit(f"Error: {error}. Install the extra: pip install 'tfrank[{verb.extra}]'")
    getattr(module, verb.function)()


if __name__ == "__main__":
    main()
