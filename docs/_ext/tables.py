"""Tables that were measured, read where they stand: in the pages, and in the CSV files of experiments."""

import csv
import pathlib
import re
from collections.abc import Iterable

Row = dict[str, str]


def rows_of_csv(path: pathlib.Path) -> list[Row]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def section(path: pathlib.Path, heading: str) -> str:
    """What a Markdown page says under a heading, up to the next of its level or above."""
    level = heading.partition(" ")[0]
    _, found, text = path.read_text().partition(f"\n{heading}\n")
    if not found:
        raise ValueError(f"{path} has no heading {heading!r}.")
    return re.split(rf"\n#{{1,{len(level)}}} ", text)[0].strip()


def rows_of_page(path: pathlib.Path, heading: str) -> list[Row]:
    """The rows of all tables under a heading of a Markdown page, up to the next of its level or above."""
    rows, header = [], None
    for line in section(path, heading).splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
        if header is None:
            header = cells
        elif not set(line) <= set("|-: "):
            row: Row = {}
            for name, cell in zip(header, cells):
                row.setdefault(name, cell)  # Of two columns of one name the first counts.
            rows.append(row)
    return rows


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
