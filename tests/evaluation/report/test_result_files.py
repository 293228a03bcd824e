"""What an evaluation leaves in a folder: read back as it was, whatever the ids, or refused in a message."""

import csv
import json

import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.evaluation.report import result_files as results
from tfrank.evaluation.report.result_files import (
    PerQuery,
    common_queries,
    load_curves,
    load_metrics,
    load_per_query,
    write_results,
)

HOSTILE = [
    *("plain", "a,b", 'say "cheese"', "line\nfeed", "car\rriage", "both\r\n", "Łódź 東京 🙂", " spaces "),
    *("", "'", '"', '",\n"', "1e5", "nan", "#", ";\t|", "=cmd()", "id"),
    *("'=cmd()", "''=cmd()", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'a", "a=b", "-"),
]
METRICS = {"recall_at_1": 0.5, "map": 1 / 3, "queries": 17, "queries_without_positive": 1}
GALLERIES = {"easy": {"images": 18, "sha256": "0"}}
CURVES = {"easy": {"recall_at_k": [[1, 2], [0.5, 1.0]]}}
PER_QUERY = PerQuery(
    np.array(HOSTILE),
    np.array([2**62, -5, *range(26)]),
    {"ap": np.array([np.nan, 0.1 + 0.2, 1.0, 0.0, *np.linspace(0, 1, 24)]), "recall_at_1": np.eye(28)[3]},
)


def write(folder, **changes):
    parts = {
        "about": {"model": 'a "model" å', "images": 18},
        "rankings": {"easy": METRICS},
        "galleries": GALLERIES,
        "extras": {"dists_intra": 0.25},
        "notes": ["A note."],
        "per_query": {"easy": PER_QUERY},
        "curves": CURVES,
        "version": "9.9.9",
    }
    write_results(str(folder), **{**parts, **changes})
    return folder


def test_metrics_are_as_the_docstring_has_them(tmp_path):
    tree = json.loads((write(tmp_path / "new") / "metrics.json").read_text())
    example = results.__doc__.split("`metrics.json`:")[1].split("`models` has the mean")[0]
    assert list(tree) == list(json.loads(example.replace(", ...", "")))
    assert tree["schema"] == 2 and tree["tfrank"] == "9.9.9"
    assert load_metrics(str(tmp_path / "new")) == tree
    assert tree["rankings"] == {"easy": METRICS} and tree["extras"] == {"dists_intra": 0.25}
    assert tree["galleries"] == GALLERIES
    assert tree["notes"] == ["A note."] and tree["about"]["images"] == 18
    assert load_curves(str(tmp_path / "new")) == CURVES


def test_the_metrics_of_each_query_come_back_bit_for_bit_whatever_their_ids(tmp_path):
    found = load_per_query(str(write(tmp_path)), "easy")
    assert found.ids.tolist() == HOSTILE
    assert found.labels.dtype == np.int64
    np.testing.assert_array_equal(found.labels, PER_QUERY.labels)
    assert list(found.metrics) == ["ap", "recall_at_1"]
    for name, values in PER_QUERY.metrics.items():
        np.testing.assert_array_equal(found.metrics[name], values)


def test_a_line_of_a_query_is_what_other_programs_read(tmp_path):
    lines = (write(tmp_path) / "per_query" / "easy.csv").read_text().splitlines()
    assert lines[:3] == [
        '"id","label","ap","recall_at_1"',
        '"plain",4611686018427387904,"",0.0',
        '"a,b",-5,0.30000000000000004,0.0',
    ]


def test_no_id_is_a_formula_to_a_spreadsheet(tmp_path):
    with open(write(tmp_path) / "per_query" / "easy.csv", newline="") as file:
        written = [line[0] for line in csv.reader(file)][1:]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in written)
    unlike = {one: cell for one, cell in zip(HOSTILE, written, strict=True) if one != cell}
    assert unlike == {one: f"'{one}" for one in HOSTILE if one.lstrip("'")[:1] in set("=+-@\t\r")}
    assert len(unlike) == 9 and len(set(written)) == len(HOSTILE)


def test_no_query_is_no_line(tmp_path):
    nothing = PerQuery(np.array([], str), np.array([], int), {"ap": np.array([])})
    found = load_per_query(str(write(tmp_path, per_query={"easy": nothing})), "easy")
    assert not len(found.ids) and not len(found.labels) and not len(found.metrics["ap"])


@pytest.mark.parametrize("fails", ["easy.csv", "curves.json", "metrics.json"])
def test_metrics_do_not_stand_beside_what_is_of_another_evaluation(tmp_path, monkeypatch, fails):
    """As if killed before a file takes its name, in a folder with an evaluation of before."""

    def replace(source, target):
        if target.endswith(fails):
            raise KeyboardInterrupt
        before(source, target)

    before = results.files.os.replace
    write(tmp_path)
    monkeypatch.setattr(results.files.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, rankings={"easy": {**METRICS, "map": 1.0}})
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"There is no evaluation in .*no metrics.json"):
        load_metrics(str(tmp_path))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.json", None, "There is no evaluation in"),
        ("metrics.json", "", "metrics.json is damaged"),
        ("metrics.json", "{", "metrics.json is damaged"),
        ("metrics.json", "[1, 2]", "metrics.json is damaged"),
        ("metrics.json", "\udcff", "metrics.json is damaged"),
        ("metrics.json", "{}", r"not written by an evaluation, or has another schema \(None\)"),
        ("metrics.json", '{"recall_at_1": 0.5}', "has another schema"),
        ("metrics.json", '{"schema": 2, "about": {}, "rankings": {}}', r"`galleries` is missing"),
        ("metrics.json", '{"schema": 1, "about": {}, "rankings": [], "galleries": {}}', "another schema"),
        ("metrics.json", '{"schema": 1, "about": {}, "rankings": {}}', "another schema"),
        ("curves.json", None, r"There is no evaluation in .*no curves.json"),
        ("curves.json", "{", "curves.json is damaged"),
        ("curves.json", '{"easy": 3}', "curves.json is damaged"),
        ("curves.json", '{"easy": {"recall_at_k": [[1, 2], [0.5]]}}', "curves.json is damaged"),
        ("curves.json", '{"easy": {"recall_at_k": [[1], [NaN]]}}', "curves.json is damaged"),
        ("metrics.json", "[" * 100_000, "metrics.json is damaged"),
        ("per_query/easy.csv", None, "that evaluation has no ranking 'easy'"),
        ("per_query/easy.csv", "", "easy.csv is damaged"),
        ("per_query/easy.csv", "name,size\na,1\n", r"damaged \(its columns are \['name', 'size'\]\)"),
        ("per_query/easy.csv", "id\na\n", "easy.csv is damaged"),
        ("per_query/easy.csv", "id,label,ap\na,1\n", "easy.csv is damaged"),
        ("per_query/easy.csv", "id,label,ap\na,1,0.5\nb,2\n", "easy.csv is damaged"),
        ("per_query/easy.csv", "id,label,ap\na,one,0.5\n", "easy.csv is damaged"),
        ("per_query/easy.csv", "id,label,ap\na,1,half\n", "easy.csv is damaged"),
        ("per_query/easy.csv", f"id,label,ap\na,{10**30},0.5\n", "easy.csv is damaged"),
        ("per_query/easy.csv", "\udcff\n", "easy.csv is damaged"),
    ],
)
def test_what_is_missing_damaged_or_foreign_is_said(tmp_path, name, content, message):
    write(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    loads = {"metrics.json": load_metrics, "curves.json": load_curves}
    with pytest.raises(InputError, match=message):
        if name in loads:
            loads[name](str(tmp_path))
        else:
            load_per_query(str(tmp_path), "easy")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Cannot write to"):
        write(tmp_path / "file")


def test_rankings_of_an_evaluation_before_do_not_stand_beside_those_of_this(tmp_path):
    write(tmp_path, per_query={"easy": PER_QUERY, "hard": PER_QUERY})
    write(tmp_path)
    assert [path.name for path in (tmp_path / "per_query").iterdir()] == ["easy.csv"]


def test_common_queries_are_found_by_id_in_the_order_of_the_first():
    one = np.array(list("dxab"))
    rows, places = common_queries(one, np.array(list("abcd")))
    assert rows.tolist() == [0, 2, 3] and places.tolist() == [3, 0, 1]
    assert [part.tolist() for part in common_queries(one, np.array(["z"]))] == [[], []]
