"""Writes the pages of the reference: the API, the command lines, and the texts beside docs."""

import inspect
import pathlib
import pkgutil

import tfrank
from docs._ext import tables
from docs._ext.docstrings import prose
from docs._ext.loss_pages import directive, write_if_changed
from tests import refusals
from tests.command_lines import run
from tfrank.__main__ import VERBS

# The pages of the API: what they have, by the module from which it is imported.
API = {
    "losses": (
        "Losses",
        "Every loss has [a page](../losses.md) with its entry. Here is what goes around them.",
        {
            "tfrank": [
                "WeightedSum",
                "CrossBatchMemory",
                "RankingLoss",
                "ProxyLoss",
                "Proxies",
            ],
            "tfrank.losses": ["get", "hyper_parameters"],
            "tfrank.losses.proxies": ["SampledProxyLoss"],
            "tfrank.losses.kernels": ["Block", "score_rows", "sigmoid_kernel"],
        },
    ),
    "training": (
        "Training",
        "For Keras' `fit`, and for loops of your own.",
        {
            "tfrank": ["MultiStageModel"],
            "tfrank.callbacks": ["RetrievalEvaluation"],
            "tfrank.data": ["balanced_batches"],
            "tfrank.metrics": [],
            "tfrank.training.optimizers": ["build_optimizer"],
        },
    ),
    "evaluation": (
        "Evaluation",
        "From arrays.",
        {
            "tfrank.evaluation": ["evaluate", "Evaluation", "ScannIndex"],
            "tfrank.evaluation.open_sets": ["open_set"],
            "tfrank.evaluation.thresholds": ["curve", "threshold"],
        },
    ),
    "search": (
        "Search",
        "Indexes that `tfrank index` has made; the extra `serve`.",
        {
            "tfrank.search": ["open", "SearchIndex", "Found"],
            "tfrank.search.labels": ["read", "said", "change", "undo"],
        },
    ),
}
# Texts beside docs that are pages of the site too, and the names of the pages.
BESIDE = {"PAPERS.md": "papers", "CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing"}


def write(docs: pathlib.Path) -> None:
    """Writes the pages into docs/reference."""
    folder = docs / "reference"
    for page, (title, text, modules) in API.items():
        entries = [entry for module, names in modules.items() for entry in _entries(module, names)]
        write_if_changed(folder / f"{page}.md", "\n\n".join([f"# {title}", text, *entries]) + "\n")
    write_if_changed(folder / "commands.md", _commands())
    write_if_changed(folder / "errors.md", _errors(docs.parent))
    for source, page in BESIDE.items():
        text = (docs.parent / source).read_text()
        write_if_changed(folder / f"{page}.md", text.replace("](docs/", "](../"))


def links_to_pages(text: str) -> str:
    """The text of a page of docs, with links to files beside docs as links to their pages."""
    for source, page in BESIDE.items():
        text = text.replace(f"](../{source}", f"](/reference/{page}.md")
    return text


def _entries(module: str, names: list[str]):
    """The entries of a module: of these names, or of all that it defines itself."""
    here = pkgutil.resolve_name(module)
    if not names:
        names = [
            n for n, one in vars(here).items() if inspect.isclass(one) and one.__module__ == here.__name__
        ]
    for name in names:
        one = getattr(here, name)
        yield directive("class" if inspect.isclass(one) else "function", f"{module}.{name}", one)


def _commands() -> str:
    """What each verb says to --help. Fields of a config have a page of their own."""
    parts = [
        "# Command lines",
        "What `tfrank VERB --help` prints, without [losses](../losses.md) and [fields](../config.md).",
    ]
    for verb, about in VERBS.items():
        ended = run("-m", "tfrank", verb, "--help", cwd=pathlib.Path(tfrank.__file__).parents[1])
        if ended.status:
            raise RuntimeError(f"tfrank {verb} --help ended with {ended.status}: {ended.errors}")
        shown = ended.output.partition("\nLosses, after the colon")[0].strip()
        parts.append(f"## tfrank {verb}\n\nTo {prose(about.does)}.\n\n```text\n{shown}\n```")
    return "\n\n".join(parts) + "\n"


def _errors(root: pathlib.Path) -> str:
    """The messages of training and evaluation in the order of the alphabet, each with what leads to it."""
    # Of several command lines with the same message the first is shown.
    leads = {
        message.replace("{bad}", "FOLDER"): (f"`{arguments.replace('{bad}', 'FOLDER')}`", name)
        for name in ("evaluation", "training")
        for arguments, message in reversed(refusals.rows(root / f"tests/run/refused_{name}.txt"))
    }
    rows = ([prose(message), *leads[message]] for message in sorted(leads))
    text = "What `tfrank train` and `tfrank eval` refuse, and options that lead there. `...` is any text."
    return f"# Errors\n\n{text}\n\n{tables.markdown(('message', 'options', 'of'), rows)}\n"
