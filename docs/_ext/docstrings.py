"""Docstrings as Markdown: as they are written, with their lists of arguments and their examples marked up."""

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple


class Parts(NamedTuple):
    """What a docstring has: its first sentence, text with formulas, entries by section, and examples."""

    summary: str
    text: str
    sections: dict[str, list[tuple[str, str]]]
    example: str


def parts(documented: object) -> Parts:
    """Takes the docstring of a class or function apart."""
    summary, *blocks = _blocks(inspect.getdoc(documented) or "")
    text, sections, examples = [], {}, []
    for block in blocks:
        if block[0].startswith(">>>"):
            examples.append("\n".join(block))
        elif len(block) > 1 and block[0].endswith(":") and block[1].startswith("    "):
            sections[block[0][:-1]] = list(_entries(block[1:]))
        else:
            text.append(_markdown(block))
    return Parts(prose(" ".join(summary)), "\n\n".join(text), sections, "\n\n".join(examples))


def markdown(documented: object) -> str:
    """The docstring as Markdown."""
    found = parts(documented)
    lists = (f"**{prose(name)}**\n\n{entries(items)}" for name, items in found.sections.items())
    example = [f"```pycon\n{found.example}\n```"] if found.example else []
    return "\n\n".join([found.summary, found.text, *lists, *example])


def entries(items: list[tuple[str, str]]) -> str:
    """A section of a docstring as a list."""
    return "\n".join(f"- `{name}`: {text}" if name else f"- {text}" for name, text in items)


def prose(text: str) -> str:
    """Text without what Markdown or HTML would take as markup, but for `code`."""
    pieces = re.split(r"(`+[^`]*`+)", text)
    pieces[::2] = [re.sub(r"([\\*<$\[\]|])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def _blocks(docstring: str) -> Iterator[list[str]]:
    """The lines between empty ones; formulas that follow one another are one block."""
    block: list[str] = []
    for line in [*docstring.splitlines(), ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Names and texts of a section: an entry begins at the least indentation."""
    entry: list[str] = []
    for line in [*lines, "    "]:
        if entry and not line.startswith("     "):
            name, colon, text = " ".join(entry).partition(": ")
            named = colon and re.fullmatch(r"[\w*`., ]+", name)
            yield (name.strip("`"), prose(text)) if named else ("", prose(" ".join(entry)))
            entry = []
        if line.strip():
            entry.append(line.strip())


def _markdown(block: list[str]) -> str:
    if block[0].startswith("    "):
        return "```text\n" + "\n".join(inspect.cleandoc("\n" + "\n".join(block)).splitlines()) + "\n```"
    if block[0].startswith("- "):
        return "\n".join(map(prose, block))
    # A paragraph in one line, so that no sign at the beginning of a line makes a list of it.
    return prose(" ".join(line.strip() for line in block))
