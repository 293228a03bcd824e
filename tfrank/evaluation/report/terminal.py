"""Tables of metrics as commands print them."""

from collections.abc import Mapping

from tfrank.evaluation.metric_names import BY_CLASS, definitions_of, metric_title

# The metrics that fit into a table with one line per model.
SHORT = ("recall_at_", "map", "hierarchical_map", "trapezoid_map", "scann_recall")


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """A table of Recall@K and mAP of several models, or of TARs if nothing is ranked, with a definition."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    keys = [
        key for key in names if (key.startswith(SHORT[0]) and not key.endswith(BY_CLASS)) or key in SHORT[1:]
    ] or [key for key in names if key.startswith("tar_at_far_")]
    width = max(map(len, rows))
    lines = [" " * width + "".join(f"{metric_title(key):>16}" for key in keys)]
    for name, row in rows.items():
        lines.append(f"{name:<{width}}" + "".join(f"{_cell(row.get(key)):>16}" for key in keys))
    last = next(reversed(rows.values()))
    if "queries" in last:
        lines.append(
            f"{last['queries']} queries. Left out: {last['queries_without_positive']} without another image"
            " of their class."
        )
    defined = keys[:1] + [key for key in keys if key == "hierarchical_map"]
    return "\n".join([*lines, *definitions_of(defined)])


def listing(rankings: Mapping[str, Mapping[str, float]]) -> str:
    """A table of all metrics, a line for each metric and a column for each ranking, with definitions.

    >>> print(listing({"": {"scann_recall": 0.5, "queries": 4, "queries_without_positive": 1}}))
    ScaNN's recall                    0.5000
    Queries                                4
    Queries without a positive             1
    """
    names = list(dict.fromkeys(name for row in rankings.values() for name in row))
    titles = [metric_title(name) for name in names]
    first, width = max([12, *map(len, titles)]), max([14, *(len(title) + 2 for title in rankings)])
    lines = [" " * first + "".join(f"{title:>{width}}" for title in rankings)] if any(rankings) else []
    for title, name in zip(titles, names):
        cells = (_cell(row.get(name)) for row in rankings.values())
        lines.append(f"{title:<{first}}" + "".join(f"{cell:>{width}}" for cell in cells))
    return "\n".join([*lines, *definitions_of(names)])


def _cell(value):
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
