"""Writes a page for each loss, from its docstring, losses.toml, what was measured, and a template."""

import inspect
import pathlib
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import jinja2

import tfrank
from docs._ext import docstrings, figures, tables
from tfrank.losses.proxies import ProxyLoss

# The experiments that compare losses: the table, and in words what was trained on what.
EXPERIMENTS = {
    "losses_birds": "birds, a head on MobileNetV2's features",
    "losses_caltech101": "Caltech-101, a head on MobileNetV2's features",
    "losses_birds_network": "birds, the whole of MobileNetV2",
    "losses_caltech101_network": "Caltech-101, the whole of MobileNetV2",
    "losses_caltech101_small_network": "Caltech-101, a small network from random weights",
    "losses_omniglot": "Omniglot, a small network from random weights",
}
WHICH = "## Which losses there are"
# The losses without a name for a config that have a page.
NAMELESS = (
    tfrank.MultiLabelSupConLoss,
    tfrank.MatryoshkaLoss,
    tfrank.AsymmetricLoss,
    tfrank.RegressionLoss,
    tfrank.RelationalLoss,
)


def classes() -> dict[str, type]:
    """The losses that have a page, by the names of their pages."""
    nameless = {inspect.signature(loss).parameters["name"].default: loss for loss in NAMELESS}
    return {**tfrank.LOSSES, **nameless, **tfrank.PROXY_LOSSES}


def with_links(text: str) -> str:
    """The text of losses.md with links to the pages of its losses."""
    for name, loss in classes().items():
        named = re.compile(rf"^\| (`{name}` )?(`{loss.__name__}\b.*?`)", re.MULTILINE)
        text = named.sub(rf"| \1[\2](/losses/{name}.md)", text)
    return text


def write(docs: pathlib.Path) -> None:
    """Writes the pages into docs/losses, and their pictures where the code is newer than they are."""
    folder = docs / "losses"
    folder.mkdir(exist_ok=True)
    facts = tomllib.loads((docs / "losses.toml").read_text())
    sources = [*pathlib.Path(tfrank.losses.__file__).parent.rglob("*.py"), pathlib.Path(figures.__file__)]
    newest = max(path.stat().st_mtime for path in [*sources, docs / "losses.toml"])
    loader = jinja2.FileSystemLoader(pathlib.Path(__file__).parent)
    template = jinja2.Environment(loader=loader, trim_blocks=True).get_template("loss.md.jinja")
    for name, loss in classes().items():
        pictures = [folder / f"{name}.svg", folder / f"{name}_step.svg"]
        fresh = all(path.exists() and path.stat().st_mtime > newest for path in pictures)
        if "undrawn" not in facts[name] and not fresh:
            _draw(loss, facts[name], *pictures)
        text = template.render(name=name, loss=loss, **_about(docs, loss, facts[name]))
        write_if_changed(folder / f"{name}.md", text)


def write_if_changed(path: pathlib.Path, text: str) -> None:
    """Writes a file unless it has this text, so that Sphinx reads only what is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def directive(kind: str, name: str, documented: Any) -> str:
    """The entry of a class or function in the reference."""
    parameters = inspect.signature(documented).parameters.values()
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters if one.name != "self"]
    text = docstrings.markdown(documented)
    return f"``````{{py:{kind}}} {name}{inspect.Signature(plain)}\n\n{text}\n``````"


def _draw(loss: type, facts: dict[str, Any], curves: pathlib.Path, step: pathlib.Path) -> None:
    around = [tfrank.losses.get(facts["around"])] if "around" in facts else []
    labels = {"labels": range(3)} if issubclass(loss, ProxyLoss) else {}
    made = loss(*around, **facts.get("options", {}), **labels)
    by_variable, moved = figures.curves_and_step(made, of_batch=facts.get("of_batch", False))
    figures.draw_curves(curves, by_variable)
    figures.draw_step(step, moved)


def _about(docs: pathlib.Path, loss: type, facts: dict[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    results = [*_results(docs, facts["results"])]
    gpu = [row for row in tables.rows_of_page(docs / "gpu.md", "## Losses") if row["loss"] in facts["cost"]]
    columns = ("loss", "512", "512, XLA", "4,096", "4,096, XLA", "MB")
    shown = ("", "512 images", "with XLA", "4,096 images", "with XLA", "MB at 4,096")
    cpu = tables.rows_of_page(docs / "benchmarks.md", "## Cost of the losses")
    return {
        "facts": {"note": "", **facts},
        "said": docstrings.parts(loss),
        "of_proxies": issubclass(loss, ProxyLoss),
        "of_teacher": hasattr(loss, "against"),
        "in_a_config": loss in (tfrank.LOSSES | tfrank.PROXY_LOSSES).values(),
        "when": tables.markdown(("", "paper, equation", "take it", "rather not"), _when(docs, loss)),
        "results": results and tables.markdown(("trained", "", "Recall@1", "mAP", "mAP - PNP-Dq"), results),
        "measured": _measured(docs, facts.get("measured")),
        "on_a_gpu": gpu and tables.markdown(shown, ([row[column] for column in columns] for row in gpu)),
        "on_a_cpu": [row for row in cpu if row["loss"] in facts["cost"]],
        "notes": "\n\n".join(_notes(docs, facts["papers"])),
        "reference": directive("class", f"tfrank.{loss.__name__}", loss),
    }


def _when(docs: pathlib.Path, loss: type) -> Iterator[list[str]]:
    """The rows of losses.md that name the loss, with links as from its page."""
    for row in tables.rows_of_page(docs / "losses.md", WHICH):
        if re.search(rf"`{loss.__name__}\b", next(iter(row.values()))):
            yield [*map(_from_page, row.values())]


def _measured(docs: pathlib.Path, heading: str | None) -> str:
    """What benchmarks.md says under a heading, without the parts that have headings of their own."""
    text = tables.section(docs / "benchmarks.md", heading).partition("\n#")[0] if heading else ""
    return _from_page(text)


def _from_page(text: str) -> str:
    """Text of a page in docs with its links as from a folder of docs."""
    return re.sub(r"\]\((?!https?:)", "](../", text)


def _results(docs: pathlib.Path, names: list[str]) -> Iterator[list[str]]:
    for table, words in EXPERIMENTS.items():
        for row in tables.rows_of_csv(docs / "experiments" / f"{table}.csv"):
            if row["loss"] in names:
                significant = ", significant" if row["mAP differs"] == "yes" else ""
                difference = row["mAP - PNP-Dq"] + significant
                yield [words, row["loss"], row["Recall@1"], row["mAP"], difference]


def _notes(docs: pathlib.Path, beginnings: list[str]) -> Iterator[str]:
    """The sections of PAPERS.md whose headings begin so."""
    for section in re.split(r"\n## ", (docs.parent / "PAPERS.md").read_text())[1:]:
        heading, _, text = section.partition("\n")
        if heading.startswith(tuple(beginnings)):
            yield text.strip()
