"""What a preparation prints, and the options of sources as a command line gives them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfrank.common import checks

_ROLES = {"query": "queries", "gallery": "in the gallery", "distractor": "distractors"}


def table(summary: Mapping[str, Any]) -> str:
    """Formats a table of the splits: classes, images, images per class (least, mean, most), skipped images.

    A dash means that there are none. Below the table are templates and their pairs, and the numbers of
    queries and gallery images of splits that separate them.
    """
    lines = [
        f"{'':12}{'classes':>10}{'images':>12}{'a class: least':>16}{'mean':>8}{'most':>8}{'skipped':>10}"
    ]
    for split, row in summary["splits"].items():
        classes = f"{'-':>10}{row['images']:>12,}{'-':>16}{'-':>8}{'-':>8}"
        if row["classes"]:
            least, mean, most = row["images_per_class"]
            classes = f"{row['classes']:>10,}{row['images']:>12,}{least:>16,}{mean:>8.1f}{most:>8,}"
        lines.append(f"{split:12}{classes}{row['skipped']:>10,}")
    if "templates" in summary:
        pairs = f"{summary['pairs']:,} pairs, {summary['positive_pairs']:,} of one person"
        lines.append(f"{summary['templates']:,} templates to compare in {pairs}")
    for split, row in summary["splits"].items():
        # Records of earlier versions lack the roles.
        if roles := row.get("roles"):
            parts = ", ".join(f"{count:,} {_ROLES[role]}" for role, count in roles.items())
            lines.append(f"{split}: {parts}")
    return "\n".join(lines)


def changes(summary: Mapping[str, Any]) -> str:
    """Describes in words how images were changed.

    >>> changes({"images": {"kept": 7, "shrunk": 20, "turned": 3}, "shorter_side": 512, "jpeg_quality": 95})
    '7 kept byte for byte, 20 shrunk (shorter side 512 pixels, JPEG quality 95), 3 turned upright'
    """
    words = {
        "kept": "kept byte for byte",
        "converted": "converted",
        "shrunk": f"shrunk (shorter side {summary['shorter_side']} pixels, JPEG quality"
        f" {summary['jpeg_quality']})",
        "turned": "turned upright",
    }
    images = summary["images"]
    return ", ".join(f"{images[name]:,} {said}" for name, said in words.items() if name in images)


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Parses the options of a source from the command line.

    >>> parse_options(["test_share=0.2", "train=Greek,Latin"])
    {'test_share': 0.2, 'train': ['Greek', 'Latin']}
    """
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise checks.invalid("option", "something like test_share=0.2", pair)
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value.split(",") if "," in value else value
    return options
