"""The columns of a list of images as OpenMetricLearning (OML) has it, in those of `csv_manifest`.

    label,path,split,is_query,is_gallery,x_1,x_2,y_1,y_2
    mallard,photos/1.jpg,train,,,60,385,27,331
    robin,photos/2.jpg,validation,True,True,,,,

Images of the split validation are those to test on. An image that is both a query and in the gallery is found
by the others and not by itself, as ours are that have no role.
"""

from collections.abc import Mapping

from tfrank.data.sources.lists import Line, coordinate

ROLES = ("is_query", "is_gallery")
CORNERS = ("x_1", "y_1", "x_2", "y_2")
COLUMNS = (*ROLES, *CORNERS)
BOTH = "query and gallery"
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "", "none", "nan")


def translated(line: Line, cells: Mapping[str, str], point: str) -> dict[str, str]:
    """Returns the cells of a row with `split`, `role`, and the box as `x`, `y`, `w`, `h`.

    Args:
        line: the row, for messages.
        cells: its values by column.
        point: beside a dot, the character that may be the decimal point.

    Raises:
        InputError: a value is of another kind, or an image to test on is neither a query nor in the gallery.
    """
    cells = dict(cells)
    if all(name in cells for name in ROLES):
        cells["split"] = {"validation": "test"}.get(cells.get("split", ""), cells.get("split", ""))
        query, gallery = (_truth(line, name, cells[name]) for name in ROLES)
        if cells["split"] == "test" and not (query or gallery):
            raise line.error("true in is_query or is_gallery, since its split is validation")
        cells["role"] = BOTH if query and gallery else "query" * query + "gallery" * gallery
    if all(name in cells for name in CORNERS) and "w" not in cells:
        corners = [cells[name].replace(point, ".") for name in CORNERS]
        if any(corners):
            left, top, right, bottom = line.convert(corners, dict.fromkeys(CORNERS, coordinate))
            sides = map(repr, (left, top, right - left, bottom - top))
            cells |= dict(zip("xywh", sides))
    return cells


def _truth(line, name, cell):
    if cell.lower() not in (*_TRUE, *_FALSE):
        raise line.error(f"true or false in {name}")
    return cell.lower() in _TRUE
