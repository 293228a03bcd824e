"""Fields of files that are read back are checked, and what is wrong is named in one line."""

import json
import pathlib

import pytest

from tests.data import image_records, write_records
from tfrank.common.checks import InputError
from tfrank.configs import default, of_run
from tfrank.configs.fields import tree
from tfrank.data.index import HEADER, load_index
from tfrank.data.record_folder import GROUND_TRUTH, SUMMARY, load_ground_truth, load_summary
from tfrank.data.sources.embeddings import read_embeddings
from tfrank.evaluation.report import result_files
from tfrank.export import model_card
from tfrank.export.saved_model import CONTENTS, exported_contents
from tfrank.run import workdir

CONFIG = tree(default.get_config("pnp"))
RESULTS = {"schema": 2, "about": {}, "rankings": {"one": {"map": 0.5}}, "galleries": {}, "models": {}}
# A file's path in its folder, what it holds, and what reads it from the folder.
FILES = {
    "config": ("config.json", CONFIG, lambda folder: of_run.get_config(f"{folder}/config.json")),
    "records": (
        "records.json",
        {"train": "0f"},
        lambda folder: workdir.check_records_of(folder, {"train": "0f"}),
    ),
    "results": ("metrics.json", RESULTS, result_files.load_metrics),
    "curves": ("curves.json", {"one": {"recall": [[0, 1], [1, 0.5]]}}, result_files.load_curves),
    "card": ("metrics.json", {"trained": {"map": 0.5}}, lambda folder: model_card.write(folder, folder)),
    "contents": (CONTENTS, {"whitening": 0.5, "scales": [1.0, 0.5]}, exported_contents),
    "summary": (
        SUMMARY,
        {"splits": {"train": {"images": 3, "shards": ["train-0.tfrecord"]}}, "source_dir": "photos"},
        load_summary,
    ),
    "ground truth": (GROUND_TRUTH, {"query": {"easy": ["a", "b"]}}, load_ground_truth),
    "index of records": (HEADER, None, load_index),
    "version of an index": (
        "versions/1.json",
        {"parts": []},
        lambda folder: list(read_embeddings(folder)),
    ),
}
SPOILT = [
    None,
    True,
    -1,
    1e400,
    float("nan"),
    2**70,
    "",
    "../x",
    "/etc/passwd",
    [],
    [[]],
    {},
    {"a": {"b": []}},
]


def places(tree, path=()):
    """The places of all values of a tree."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def changed(tree, path, value):
    """The tree with another value at a place."""
    if not path:
        return value
    copy = json.loads(json.dumps(tree))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return copy


@pytest.fixture
def folder(tmp_path, request):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "versions").mkdir()
    (tmp_path / "CURRENT").write_text("1\n")
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_spoilt_file_is_read_or_named_in_one_line(name, folder):
    file, tree, read = FILES[name]
    if tree is None:
        write_records(image_records(), str(folder), "train")
        folder = folder / "train.index"
        tree = json.loads((folder / file).read_text())
    path = pathlib.Path(folder) / file
    path.write_text(json.dumps(tree))
    refused, whole = 0, name not in ("version of an index",)
    if whole:
        read(str(folder))
    texts = [json.dumps(changed(tree, place, value)) for place in places(tree) for value in SPOILT]
    for text in ["", "{", "[1, 2]", "null", "[" * 100_000, "\udcff", '{"a": NaN}', *texts]:
        path.write_bytes(text.encode(errors="surrogateescape"))
        try:
            read(str(folder))
        except InputError as error:
            refused += 1
            assert "\n" not in str(error) and str(folder) in str(error), (text[:200], error)
    assert refused >= 7
