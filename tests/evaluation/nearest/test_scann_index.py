"""The ScaNN index against exact search: recall, change, folders, faults."""

import hashlib
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import google_crc32c
import numpy as np
import pytest

import tfrank
from tests.programs import printed_json
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import scann_files, scann_index, searchers
from tfrank.evaluation.nearest.exhaustive import exact, recall_against_exact
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.evaluation.nearest.scann_settings import Depth, Settings

pytest.importorskip("scann", reason="ScaNN is not there for this platform")

METHODS = ("brute_force", "hashing", "tree")
every_method = pytest.mark.parametrize("method", METHODS)
DIM = 24


def clustered(rows, seed=0, dim=DIM):
    """Rows of clusters of about 20."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(max(1, rows // 20), dim))
    points = centers[rng.integers(0, len(centers), rows)] + 0.4 * rng.normal(size=(rows, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


ROWS = clustered(2000)
OWN = np.arange(2000)
# Products of these are exact in float32, so that twins are tied by whatever means they are compared.
COARSE = np.round(64 * ROWS) / 64


def exhaustive(rows, method, ids=None):
    """An index that looks everywhere, so that it overlooks nothing."""
    index = ScannIndex.build(rows, ids=ids, method=method)
    settings = index.settings
    if settings.method != "brute_force":
        index.settings = settings._replace(depths=(Depth(len(rows), settings.leaves, len(rows), 1.0),))
    return index


def assert_found_as_exactly(index, queries, k, own=None):
    got, wanted = index.search(queries, k, own), exact(queries, index.rows, k, own)
    np.testing.assert_array_equal(got.index, wanted.index)
    np.testing.assert_allclose(got.similarity, wanted.similarity, atol=1e-6)
    assert got.index.dtype == np.int64 and got.similarity.dtype == np.float32


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("target", [0.8, 0.99])
def test_the_recall_that_was_asked_for_is_reached_on_other_queries(method, target):
    index = ScannIndex.build(ROWS, method=method, target_recall=target, queries=clustered(500, seed=8))
    settings = index.settings
    assert settings.method == method and settings.recall >= target
    assert settings.leaves == (45 if method == "tree" else 0)
    queries = clustered(500, seed=7)
    for k in (10, 24, 100, 300, 1999):
        assert recall_against_exact(index.search(queries, k), queries, ROWS, k) > target - 0.03


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("noise", [0, 0.25])
def test_as_much_is_found_for_every_number_of_neighbors_of_rows_that_are_not_in_the_index(method, noise):
    """The clusters lie apart, so that a search for few neighbours needs few leaves."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(150, 16))[rng.integers(150, size=3300)] + 0.3 * rng.normal(size=(3300, 16))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    queries = rows[3000:] + noise / 4 * rng.normal(size=(300, 16))
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    index = ScannIndex.build(rows[:3000], method=method)
    assert index.settings.method == method and [depth.k for depth in index.settings.depths][:2] == [10, 30]
    for k in (10, 24, 100, 500):
        assert recall_against_exact(index.search(queries, k), queries, rows[:3000], k) > 0.98


def test_a_tree_that_was_saved_with_the_settings_of_one_k_is_searched_exactly_for_larger_ones(tmp_path):
    ScannIndex.build(ROWS, method="tree", k=10, target_recall=0.5).save(tmp_path)
    manifest = json.loads((tmp_path / "index.json").read_text())
    (depth,) = manifest["settings"].pop("depths")
    manifest["settings"] |= dict(zip(Depth._fields, depth))
    (tmp_path / "index.json").write_text(json.dumps(manifest))
    loaded = ScannIndex.load(tmp_path)
    assert loaded.settings.depths == (Depth(*depth),)
    assert_found_as_exactly(loaded, ROWS[:20], 11)


def test_the_same_rows_give_the_same_tree():
    found = [ScannIndex.build(ROWS, method="tree", target_recall=0.8).search(ROWS, 9).index for _ in range(3)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_leaves_and_candidates_grow_until_the_recall_is_reached_or_brute_force_takes_over():
    rows = clustered(2000, dim=64)
    easy, hard = (
        ScannIndex.build(rows, method="tree", k=50, target_recall=recall).settings for recall in (0.5, 0.97)
    )
    assert easy.depths[0].leaves_to_search < hard.depths[0].leaves_to_search
    assert 0.5 <= easy.recall < 0.97 <= hard.recall
    many = ScannIndex.build(rows, method="tree", k=501, target_recall=1.0)
    assert many.settings.method == "brute_force" or many.settings.recall == 1
    assert_found_as_exactly(many, rows[:50], 501)


@pytest.mark.parametrize(
    "rows, method", [(50, "brute_force"), (119, "brute_force"), (120, "tree"), (200, "tree")]
)
def test_the_method_follows_from_the_number_of_rows(monkeypatch, rows, method):
    monkeypatch.setattr(scann_index, "TREE_FROM", 120)
    chosen = ScannIndex.build(ROWS[:rows], target_recall=0.01).settings
    assert chosen.method == method
    assert_found_as_exactly(exhaustive(ROWS[:rows], None), ROWS[:9], 5)
    monkeypatch.setattr(scann_index, "SAMPLE", 10)
    assert searchers.find("scann", ROWS[:9], ROWS[:rows], 5).index[:, 0].tolist() == list(range(9))


@every_method
@pytest.mark.parametrize("rows, dim", [(1, 24), (2, 3), (15, 5), (16, 1), (17, 5), (40, 7)])
def test_few_rows_and_any_dim_are_searched(method, rows, dim):
    few = clustered(rows, dim=dim)
    if dim == 1:
        few = np.linspace(0.1, 1, rows, dtype=np.float32)[:, None]
    for k in (1, 4, rows, rows + 3):
        assert_found_as_exactly(exhaustive(few, method), few, k)
        assert_found_as_exactly(exhaustive(few, method), few, k, np.arange(rows))


@every_method
def test_an_index_that_looks_everywhere_gives_what_exact_search_gives(method):
    index = exhaustive(ROWS, method)
    assert_found_as_exactly(index, clustered(70, seed=3), 13)
    assert_found_as_exactly(index, ROWS[:70], 13, np.where(OWN[:70] % 2, OWN[:70], -1))


def test_what_scann_pads_with_is_no_neighbor():
    """Where it finds too few it repeats its row 0, at distance NaN."""

    class Searcher:
        def search_batched_parallel(self, queries, **_):
            return (
                np.array([[1, 3, 0], [2, 0, 0], [0, 0, 0]], np.uint32),
                np.array([[1, 0.9, 0.8], [0.7, np.nan, np.nan], [np.nan] * 3], np.float32),
            )

    settings = Settings("hashing", 0, (Depth(8, 0, 10, 1.0),))
    index = ScannIndex(ROWS[:9], OWN[:9], settings, Searcher(), OWN[:9])
    got = index._by_scann(ROWS[:3], 2, np.array([1, -1, 0]), settings.depths[0])
    np.testing.assert_array_equal(got.index, [[3, 0], [2, -1], [-1, -1]])
    np.testing.assert_array_equal(got.similarity, np.float32([[0.9, 0.8], [0.7, -np.inf], [-np.inf] * 2]))
    # What is missing is then searched exactly.
    assert_found_as_exactly(ScannIndex(ROWS[:9], OWN[:9], settings, Searcher(), OWN[:9]), ROWS[1:4], 8)


def test_leaves_that_hold_fewer_than_k_give_k_neighbors_all_the_same():
    index = ScannIndex.build(ROWS, method="tree", k=1, target_recall=0.5)
    index.settings = index.settings._replace(depths=(Depth(300, 3, 300, 0.5),))
    found = index.search(ROWS[:40], 300, OWN[:40])
    assert np.all(found.index >= 0) and not np.any(found.index == OWN[:40, None])
    assert recall_against_exact(found, ROWS[:40], ROWS, 300, OWN[:40]) > 0.5


@every_method
def test_after_rows_come_and_go_the_index_finds_what_a_new_one_of_the_same_rows_finds(method):
    rng = np.random.default_rng(5)
    index = exhaustive(COARSE[:500], method, ids=np.char.add("a", OWN[:500].astype(str)))
    kept = {f"a{n}": row for n, row in enumerate(COARSE[:500])}
    queries = COARSE[480:540]
    for turn in range(4):
        gone = rng.choice(list(kept), 60, replace=False).tolist()
        index.delete(gone)
        new = {f"new {turn} {n}": row for n, row in enumerate(COARSE[600 + 40 * turn :][:40])}
        # A row that is there already, and one that was deleted, so that there are ties.
        new |= {f"twin {turn}": index.rows[3], gone[0]: kept[gone[0]]}
        index.add(np.stack(list(new.values())), list(new))
        kept = {name: row for name, row in kept.items() if name not in gone} | new
        assert index.ids.tolist() == list(kept) and len(index) == len(kept)
        np.testing.assert_array_equal(index.rows, np.stack(list(kept.values())))
        assert_found_as_exactly(index, queries, 9)
        assert_found_as_exactly(index, index.rows, 9, np.arange(len(index)))
    assert index.rebuild(method=method).ids.tolist() == list(kept)
    assert_found_as_exactly(exhaustive(index.rows, method), queries, 9)


@every_method
def test_all_rows_may_go_and_others_come(method):
    index = exhaustive(ROWS[:50], method)
    index.delete(OWN[:50])
    with pytest.raises(InputError, match="at least one row"):
        index.search(ROWS[:2], 1)
    index.add(ROWS[50:60], OWN[50:60])
    assert_found_as_exactly(index, ROWS[50:60], 3, OWN[:10])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda index: index.add(ROWS[:2], ["b", "z"]), r"has the ids 'b' already"),
        (lambda index: index.add(ROWS[:2], ["z", "z"]), r"once\. More than once: 'z'"),
        (lambda index: index.add(ROWS[:2], [7, 8]), r"Expected 2 strings\. Received: int64"),
        (lambda index: index.add(ROWS[:2], ["z"]), r"Expected 2 strings\. Received: <U1 of shape \(1,\)"),
        (lambda index: index.add(ROWS[:2, :5], ["y", "z"]), r"Expected rows of dim 24"),
        (lambda index: index.add(ROWS[:2] * np.array([[1], [np.nan]]), ["y", "z"]), r"row of id 'z' of"),
        (lambda index: index.delete(["c", "q", "r"]), r"does not have the ids 'q', 'r'\."),
        (lambda index: index.delete(["c", "c"]), r"More than once: 'c'"),
        (lambda index: index.search(ROWS[:2, :5], 1), r"Queries have 5 dimensions and the gallery has 24"),
        (lambda index: index.search(ROWS[:2], 0), r"`k`"),
        (lambda index: ScannIndex.build(ROWS, ids=["a"]), r"Expected 2000 integers or strings"),
        (lambda index: ScannIndex.build(ROWS, ids=OWN // 2), r"More than once: 0, 1, 2, 3, 4 and 995 more"),
        (lambda index: ScannIndex.build(ROWS, target_recall=1.5), r"`target_recall`"),
        (lambda index: ScannIndex.build(ROWS, method="trees"), r'Did you mean "tree"'),
    ],
)
def test_bad_changes_are_named_and_change_nothing(change, message):
    index = ScannIndex.build(ROWS[:3], ids=["a", "b", "c"])
    with pytest.raises(InputError, match=message):
        change(index)
    assert index.ids.tolist() == ["a", "b", "c"] and len(index.rows) == 3


def changed_index(method):
    """An index with rows that came and went after it was built."""
    index = ScannIndex.build(ROWS[:600], method=method, target_recall=0.9)
    index.delete(OWN[100:150])
    index.add(ROWS[600:700], OWN[600:700])
    return index


@every_method
@pytest.mark.parametrize("changed", [False, True])
def test_a_saved_index_finds_the_same_after_its_folder_has_moved(tmp_path, monkeypatch, method, changed):
    index = changed_index(method) if changed else ScannIndex.build(ROWS[:600], method=method)
    monkeypatch.chdir(tmp_path)
    index.save("first")
    shutil.move("first", "second")
    loaded = ScannIndex.load("second")
    assert loaded.settings == index.settings and isinstance(loaded.rows, np.memmap)
    for name in ("rows", "ids"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(index, name))
    for got, wanted in zip(loaded.search(ROWS, 7), index.search(ROWS, 7)):
        np.testing.assert_array_equal(got, wanted)
    names = [path.name for path in pathlib.Path("second").rglob("*")]
    assert not any("pkl" in name or "tmp" in name for name in names)
    loaded.add(ROWS[700:702], OWN[700:702])
    loaded.save("second")
    assert ScannIndex.load("second").ids[-1] == 701 and len(os.listdir("second")) == 2


PROGRAM = """
import hashlib, json, sys, numpy as np
from tests.evaluation.nearest.test_scann_index import ROWS
from tfrank.evaluation.nearest.scann_index import ScannIndex
found = [ScannIndex.load(folder).search(ROWS, 9) for folder in sys.argv[1:]]
print(json.dumps([[hashlib.sha1(part.tobytes()).hexdigest() for part in one] for one in found]))
"""


@pytest.mark.slow
def test_another_process_finds_the_same(tmp_path):
    here = []
    for method in ("hashing", "tree"):
        index = changed_index(method)
        index.save(tmp_path / method)
        here.append([hashlib.sha1(part.tobytes()).hexdigest() for part in index.search(ROWS, 9)])
    assert printed_json("-c", PROGRAM, *(str(tmp_path / method) for method in ("hashing", "tree"))) == here


# Saves in a child process, kills it after a while, and waits for a line before the next child.
SAVES_AND_KILLS = """
import os, pathlib, signal, sys, time, numpy as np
from tfrank.evaluation.nearest.scann_index import ScannIndex
rows = np.random.default_rng(0).normal(size=(20000, 64)).astype(np.float32)
indexes = [ScannIndex.build(rows[:n], method="brute_force") for n in (19000, 20000)]
manifest = pathlib.Path(sys.argv[1]) / "index.json"
for wait in (0.05, 0.13, 0.21):
    child = os.fork()
    while not child:
        for index in indexes:
            index.save(sys.argv[1])
    deadline = time.monotonic() + 60
    while not manifest.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_killed_save_leaves_a_whole_index(tmp_path):
    root = pathlib.Path(tfrank.__file__).parents[1]
    command = [sys.executable, "-c", SAVES_AND_KILLS, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for _ in range(3):
            assert process.stdout.readline() == b"killed\n"
            index = ScannIndex.load(tmp_path)
            assert len(index) == len(index.ids) in (19000, 20000)
            assert index.search(index.rows[-2:], 1).index.ravel().tolist() == [len(index) - 2, len(index) - 1]
            process.stdin.write(b"\n")
            process.stdin.flush()
    assert process.returncode == 0


def test_a_save_removes_what_killed_saves_left(tmp_path):
    (tmp_path / "0123456789abcdef0123456789abcdef").mkdir()
    (tmp_path / "index.json.tmp").touch()
    ScannIndex.build(ROWS[:60]).save(tmp_path)
    assert len(os.listdir(tmp_path)) == 2


def test_a_save_that_fails_leaves_the_old_index(tmp_path, monkeypatch):
    index = ScannIndex.build(ROWS[:60])
    index.save(tmp_path)
    before = sorted(os.listdir(tmp_path))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scann_files.files, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        ScannIndex.build(ROWS).save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before and len(ScannIndex.load(tmp_path)) == 60


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def _saved(folder):
    """The folder of the one save."""
    return folder / json.loads((folder / "index.json").read_text())["folder"]


def _described(folder, place):
    """Makes the manifest agree with a file that was changed."""
    manifest, victim = json.loads((folder / "index.json").read_text()), _saved(folder) / place
    crc = int.from_bytes(google_crc32c.Checksum(victim.read_bytes()).digest(), "big")
    manifest["files"][place] = {"bytes": victim.stat().st_size, "crc32c": crc}
    (folder / "index.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("place", ["scann/scann_docids.pkl", "ids.npy", "row_of.npy", "scann/dataset.npy"])
def test_nothing_in_a_folder_is_ever_unpickled(tmp_path, place):
    folder, mark = tmp_path / "index", tmp_path / "unpickled"
    ScannIndex.build(ROWS[:300], method="hashing").save(folder)
    victim = _saved(folder) / place
    victim.unlink(missing_ok=True)
    with open(victim, "wb") as file:
        if place.endswith("pkl"):
            pickle.dump(Bomb(mark), file)
        else:
            np.save(file, np.array([Bomb(mark)], object), allow_pickle=True)
    _described(folder, place)
    with pytest.raises(
        InputError, match=r"There is no whole index in .*(is a pickle|allow_pickle|Python objects)"
    ):
        ScannIndex.load(folder)
    assert not mark.exists()


def test_a_file_in_which_one_bit_is_another_is_named(tmp_path):
    ScannIndex.build(ROWS[:300], method="tree").save(tmp_path)
    names = [
        str(path.relative_to(_saved(tmp_path))) for path in _saved(tmp_path).rglob("*") if path.is_file()
    ]
    assert len(names) > 4
    for name in names:
        whole = (_saved(tmp_path) / name).read_bytes()
        (_saved(tmp_path) / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(InputError, match=f"no whole index in .*{name} is damaged"):
            ScannIndex.load(tmp_path)
        (_saved(tmp_path) / name).write_bytes(whole)
    assert len(ScannIndex.load(tmp_path)) == 300


@pytest.mark.parametrize("place", ["scann", "scann/dataset.npy", "ids.npy", ".", "../index.json"])
def test_a_link_in_the_folder_is_never_followed(tmp_path, place):
    """ScaNN unpickles what it finds in a folder that is a link, which the list of files does not enter."""
    folder, mark = tmp_path / "index", tmp_path / "unpickled"
    ScannIndex.build(ROWS[:300], method="hashing").save(folder)
    victim, elsewhere = (_saved(folder) / place).resolve(), tmp_path / "elsewhere"
    if place == "scann":
        with open(victim / "scann_docids.pkl", "wb") as file:
            pickle.dump(Bomb(mark), file)
        manifest = json.loads((folder / "index.json").read_text())
        manifest["files"] = {n: f for n, f in manifest["files"].items() if not n.startswith("scann/")}
        (folder / "index.json").write_text(json.dumps(manifest))
        np.save(_saved(folder) / "rows.npy", ROWS[:300])
        _described(folder, "rows.npy")
    victim.rename(elsewhere)
    victim.symlink_to(elsewhere)
    with pytest.raises(InputError, match=rf"no whole index in .*{victim.name} is a link"):
        ScannIndex.load(folder)
    assert not mark.exists()


@pytest.mark.parametrize("path", ["../rows.npy", "nowhere.npy", "/etc/hostname", 'a.npy" "b', r"\x61.npy"])
def test_scann_is_given_no_file_that_is_not_of_the_index(tmp_path, path):
    ScannIndex.build(ROWS[:300], method="hashing").save(tmp_path)
    listed = _saved(tmp_path) / "scann" / "scann_assets.pbtxt"
    listed.write_text(listed.read_text().replace("dataset.npy", path, 1))
    _described(tmp_path, "scann/scann_assets.pbtxt")
    with pytest.raises(InputError, match=r"no whole index in .*scann_assets\.pbtxt does not list files of"):
        ScannIndex.load(tmp_path)


@pytest.mark.parametrize("method, name", [("brute_force", "rows.npy"), ("tree", "scann/dataset.npy")])
def test_rows_that_are_not_those_that_were_saved_are_refused(tmp_path, method, name):
    ScannIndex.build(ROWS[:300], method=method).save(tmp_path)
    np.lib.format.open_memmap(_saved(tmp_path) / name, "r+")[:] = 0
    with pytest.raises(InputError, match=f"{name} is damaged: its checksum"):
        ScannIndex.load(tmp_path)
    manifest = json.loads((tmp_path / "index.json").read_text())
    del manifest["files"][name]["crc32c"]
    (tmp_path / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=f"{name} is damaged: its checksum"):
        ScannIndex.load(tmp_path)


@pytest.mark.parametrize(
    "name, array",
    [
        ("row_of.npy", OWN[:300] + 1000),
        ("row_of.npy", OWN[:300][::-1]),
        ("row_of.npy", OWN[:299]),
        ("row_of.npy", np.linspace(0, 1, 300)),
        ("row_of.npy", np.int64(3)),
        ("ids.npy", OWN[:299]),
        ("ids.npy", np.ones(300)),
        ("rows.npy", ROWS[:300].astype(np.float64)),
        ("rows.npy", ROWS[0]),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path, name, array):
    ScannIndex.build(ROWS[:300], method="hashing").save(tmp_path)
    np.save(_saved(tmp_path) / name, array)
    _described(tmp_path, name)
    with pytest.raises(InputError, match=rf"no whole index in .*({name}|rows) .*Build and save it again"):
        ScannIndex.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.pop("settings"),
        lambda tree: tree.update(settings={}),
        lambda tree: tree.update(settings=None),
        lambda tree: tree["settings"].update(extra=1),
        lambda tree: tree["settings"].pop("depths"),
        lambda tree: tree["settings"]["depths"][0].__setitem__(0, 0),
        lambda tree: tree["settings"].update(depths=[3]),
        lambda tree: tree["settings"].update(method="magic"),
        lambda tree: tree["settings"]["depths"][0].__setitem__(3, "high"),
        lambda tree: tree.update(files=[]),
        lambda tree: tree.update(files={"ids.npy": 3}),
        lambda tree: tree["files"].pop("ids.npy"),
        lambda tree: tree["files"]["ids.npy"].pop("crc32c"),
        lambda tree: tree.update(folder="../../etc"),
        lambda tree: tree.update(folder=3),
    ],
)
def test_a_manifest_that_was_edited_by_hand_is_named_in_one_line(tmp_path, change):
    ScannIndex.build(ROWS[:300], method="hashing").save(tmp_path)
    manifest = json.loads((tmp_path / "index.json").read_text())
    change(manifest)
    (tmp_path / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=f"{tmp_path}.*Build and save it again") as caught:
        ScannIndex.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "\0", "3", "{}", "NaN"])
def test_a_manifest_that_is_none_is_named_in_one_line(tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(InputError, match=f"no whole index in {tmp_path}.*Build and save it again") as caught:
        ScannIndex.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["ids.npy", "row_of.npy", "rows.npy"])
def test_a_header_that_promises_more_than_memory_holds_is_refused(tmp_path, name):
    ScannIndex.build(ROWS[:300]).save(tmp_path)
    with open(_saved(tmp_path) / name, "wb") as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": (2**45,)}
        np.lib.format.write_array_header_1_0(file, header)
    _described(tmp_path, name)
    with pytest.raises(InputError, match="no whole index in"):
        ScannIndex.load(tmp_path)


SAVES_OFTEN = """
import sys, numpy as np
from tfrank.evaluation.nearest.scann_index import ScannIndex
rows = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
indexes = [ScannIndex.build(rows[:n], method="hashing") for n in (500, 600)]
while True:
    for index in indexes:
        index.save(sys.argv[1])
        print("saved", flush=True)
"""


@pytest.mark.slow
def test_who_loads_while_another_process_saves_gets_the_old_index_or_the_new_one(tmp_path):
    root = pathlib.Path(tfrank.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SAVES_OFTEN, str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout.readline() == b"saved\n"
        sizes = set()
        for _ in range(150):
            index = ScannIndex.load(tmp_path)
            found = index.search(index.rows[-2:], 1).index.ravel().tolist()
            assert len(index) == len(index.ids) and found == [len(index) - 2, len(index) - 1]
            sizes.add(len(index))
        assert sizes == {500, 600} and process.poll() is None
    finally:
        process.kill()
        process.communicate()
    # What readers held has gone with later saves; a killed save may leave one more.
    ScannIndex.build(ROWS[:60]).save(tmp_path)
    assert len(os.listdir(tmp_path)) == 2


def test_a_folder_without_a_whole_index_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no whole index in .*No such file.*Build and save it again"):
        ScannIndex.load(tmp_path)
    with pytest.raises(InputError, match="local folders"):
        ScannIndex.build(ROWS[:9]).save("gs://bucket/index")
    ScannIndex.build(ROWS[:300], method="hashing").save(tmp_path)
    manifest = (tmp_path / "index.json").read_text()
    dataset = _saved(tmp_path) / "scann" / "dataset.npy"
    whole = dataset.read_bytes()
    dataset.write_bytes(whole[:-4])
    with pytest.raises(InputError, match=r"scann/dataset\.npy has 28924 bytes and should have 28928"):
        ScannIndex.load(tmp_path)
    dataset.unlink()
    with pytest.raises(InputError, match=r"scann/dataset\.npy has None bytes"):
        ScannIndex.load(tmp_path)
    dataset.write_bytes(whole)
    for broken in (manifest[:50], "[]", manifest.replace('"format": 1', '"format": 2'), '{"format": 1}'):
        (tmp_path / "index.json").write_text(broken)
        with pytest.raises(InputError, match="no whole index"):
            ScannIndex.load(tmp_path)
