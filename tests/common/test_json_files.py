"""JSON that is read back: each field has a type and bounds, and what is wrong is said in one line."""

import json
import os

import pytest

from tfrank.common import json_files
from tfrank.common.checks import InputError
from tfrank.common.json_files import dict_of, list_of, none_or, one_of, real, record, text, whole

LEVEL = record(
    {"name": json_files.file_name(), "rows": whole(1, 100), "recall": real(0, 1), "kind": one_of("a", "b")},
    {"parts": list_of(text(r"p\d"), different=True), "by": dict_of(none_or(whole()))},
)
GOOD = {"name": "a.b", "rows": 3, "recall": 1, "kind": "b", "parts": ["p1", "p2"], "by": {"x": 3, "y": None}}


def test_what_fits_is_returned_as_it_is():
    assert json_files.parse(json.dumps(GOOD), LEVEL, "level.json", "Again.") == GOOD


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rows": True}, "`rows`: expected a whole number from 1 to 100, not True"),
        ({"rows": 3.0}, "`rows`: expected a whole number from 1 to 100, not 3.0"),
        ({"rows": 101}, "`rows`: expected a whole number from 1 to 100, not 101"),
        ({"rows": "3"}, "`rows`: expected a whole number from 1 to 100, not '3'"),
        ({"recall": 1.5}, "`recall`: expected a finite number from 0 to 1, not 1.5"),
        ({"recall": 10**400}, "`recall`: expected a finite number from 0 to 1, not 1000"),
        ({"recall": False}, "`recall`: expected a finite number from 0 to 1, not False"),
        ({"recall": float("nan")}, "NaN is no number of JSON"),
        ({"kind": ["a"]}, "`kind`: expected one of 'a', 'b', not ['a']"),
        ({"name": "../x"}, "`name`: expected the name of a file, without a folder, not '../x'"),
        ({"name": "/etc/passwd"}, "`name`: expected the name of a file, without a folder"),
        ({"name": ".."}, "`name`: expected the name of a file, without a folder"),
        ({"name": "a\nb"}, "`name`: expected the name of a file, without a folder"),
        ({"name": ""}, "`name`: expected the name of a file, without a folder"),
        ({"parts": {"p1": 1}}, "`parts`: expected a list, not {'p1': 1}"),
        ({"parts": ["p1", None]}, r"`parts[1]`: expected text of the form p\d, not None"),
        ({"parts": ["p1", "p1"]}, "`parts`: expected different items"),
        ({"by": {"x": -1}}, "`by.x`: expected a whole number from 0 to"),
        ({"by": []}, "`by`: expected an object, not []"),
        ({"further": 1}, "`further` is no field of it"),
        ({"rows": {"x" * 500: 1}}, "`rows`: expected a whole number from 1 to 100, not {'xxx"),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_what_was_expected(change, reason):
    with pytest.raises(InputError) as caught:
        json_files.parse(json.dumps(GOOD | change), LEVEL, "level.json", "Again.")
    assert str(caught.value).startswith(f"level.json is damaged ({reason}")
    assert str(caught.value).endswith("). Again.")
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff{}", b"null", b'"x"', b"1" * 5000, b"[1]"])
def test_what_is_no_object_is_refused_in_one_line(data):
    with pytest.raises(InputError, match=r"^level.json is damaged \([^\n]*\)\. Again\.$"):
        json_files.parse(data, LEVEL, "level.json", "Again.")


def test_a_file_is_read_unless_it_is_too_large_or_something_else(tmp_path):
    path = tmp_path / "level.json"
    with pytest.raises(FileNotFoundError):
        json_files.read(str(path), LEVEL, "Again.")
    path.write_text(json.dumps(GOOD))
    assert json_files.read(str(path), LEVEL, "Again.") == GOOD
    assert json_files.read("level.json", LEVEL, "Again.", below=str(tmp_path)) == GOOD
    with pytest.raises(InputError, match=r"is damaged \(it has more than 50 bytes\)\. Again\."):
        json_files.read(str(path), LEVEL, "Again.", most_bytes=50)
    os.symlink(path, tmp_path / "link")
    assert json_files.read(str(tmp_path / "link"), LEVEL, "Again.") == GOOD
    os.mkfifo(tmp_path / "pipe")
    for name, below in ((str(tmp_path / "pipe"), None), ("link", str(tmp_path)), (str(tmp_path), None)):
        with pytest.raises(InputError, match=r"cannot be read \(.*\)\. Again\."):
            json_files.read(name, LEVEL, "Again.", below=below)
