"""What people say of labels: nothing of it is lost, whoever writes at the same time or is killed."""

import multiprocessing
import os
import signal
import time

import pytest

from tfrank.common.checks import InputError
from tfrank.search import labels

START = labels.said("no such folder").version


@pytest.fixture
def place(tmp_path):
    """A folder, as text."""
    return str(tmp_path)


def test_the_latest_word_on_each_photo_is_read_and_none_takes_it_back(place):
    version = labels.change(place, {"a": "wren", "b,\n": ' "robin" ', "c": ""}, START)
    version = labels.change(place, {"a": "finch", "c": None, "d": None}, version)
    assert labels.read(place) == {"a": "finch", "b,\n": '"robin"'}
    assert labels.said(place).version == version


def test_a_stale_version_is_refused_and_nothing_is_lost(place):
    version = labels.change(place, {"a": "wren"}, START)
    with pytest.raises(labels.Stale, match="Somebody else changed the labels meanwhile"):
        labels.change(place, {"a": "finch"}, START)
    with pytest.raises(labels.Stale):
        labels.undo(place, START)
    assert labels.said(place) == ({"a": "wren"}, version)


def test_changes_are_undone_one_after_the_other_also_where_labels_came_back(place):
    states, version = [{}], START
    for changes in ({"a": "x", "b": ""}, {"a": "y"}, {"a": "x"}, {"a": None, "c": "z"}):
        version = labels.change(place, changes, version)
        states.append(labels.read(place))
    assert labels.change(place, {"c": "z"}, version) == version  # It changes nothing, and is no step.
    while states[:-1]:
        assert labels.read(place) == states.pop()
        assert labels.undoable(place) > 0
        version = labels.undo(place, version)
    assert (labels.read(place), version, labels.undoable(place)) == ({}, START, 0)
    with pytest.raises(InputError, match="no change to undo"):
        labels.undo(place, version)


def test_a_change_that_did_not_come_about_is_not_undone(place, tmp_path):
    version = labels.change(place, {"a": "wren"}, START)
    kept = (tmp_path / "labels.csv").read_text()
    labels.change(place, {"b": "robin"}, version)
    (tmp_path / "labels.csv").write_text(kept)  # As if it was killed between its two files.
    assert labels.undo(place, version) == START


def test_a_file_from_a_spreadsheet_is_read_and_its_last_row_of_a_photo_counts(place, tmp_path):
    (tmp_path / "labels.csv").write_bytes("\ufeffid,label\r\na,Zaunkönig\r\n\r\na,wren\r\n".encode())
    assert labels.read(place) == {"a": "wren"}
    # Written by hand, it is no step that can be undone.
    assert labels.undoable(place) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: expected id,label"),
        (b"\nid,label\n", "line 1: expected id,label"),
        (b"name,label\na,b\n", "line 1: expected id,label"),
        (b"id,label\na,b\nc\n", "line 3: expected id,label"),
        (b'id,label\na,"b\n', "line 2: unexpected end of data"),
        (b"id,label\na,\xff\n", "line 2: it is no UTF-8"),
        (b'id,label\na,"b\nc"\n', "line 2: A label has at most 200 letters, on one line"),
        (b"id,label\na," + b"b" * 201 + b"\n", "line 2: A label has at most 200 letters"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line_and_stays(place, tmp_path, content, message):
    (tmp_path / "labels.csv").write_bytes(content)
    for use in (labels.read, lambda place: labels.change(place, {"a": "wren"}, START)):
        with pytest.raises(InputError, match=message):
            use(place)
    assert (tmp_path / "labels.csv").read_bytes() == content


def test_a_label_that_no_line_can_hold_is_refused(place):
    for label in ("a\nb", "a" * 201, "\ud800"):
        with pytest.raises(InputError, match="x: A label has at most 200 letters, on one line"):
            labels.change(place, {"x": label}, START)


def test_a_folder_that_cannot_be_written_is_told_and_nothing_is_changed(place, tmp_path):
    version = labels.change(place, {"a": "wren"}, START)
    (tmp_path / "labels-history.csv.tmp").mkdir()
    with pytest.raises(InputError, match=r"Cannot write to .*Is a directory.*No label was changed"):
        labels.change(place, {"a": "finch"}, version)
    assert labels.said(place) == ({"a": "wren"}, version)


def test_labels_of_photos_that_are_gone_are_counted():
    spoken = {"a": "wren", "b": "", "c": "robin"}
    assert labels.gone(["a"], spoken) == (
        "Photos that are gone have 2 of the labels in labels.csv, which are kept."
    )
    assert labels.gone("abc", spoken) == ""


def _add(place, name, count):
    """Adds one label after the other, each to what it finds."""
    done = 0
    while done < count:
        try:
            labels.change(place, {f"{name} {done}": name}, labels.said(place).version)
            done += 1
        except labels.Stale:
            pass


def _process(place, name, count):
    process = multiprocessing.get_context("fork").Process(target=_add, args=(place, name, count))
    process.start()
    return process


def test_processes_that_write_at_once_lose_nothing(place):
    processes = [_process(place, name, 20) for name in "abc"]
    for process in processes:
        process.join()
    assert len(labels.read(place)) == 60


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_labels_whole(place):
    known = 0
    for run in range(40):
        process = _process(place, f"run {run}", 10**9)
        time.sleep(0.04 + 0.002 * run)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        said = labels.said(place).labels
        assert len(said) >= known
        # Each run wrote its labels one after the other, and none is missing in between.
        for key, name in said.items():
            assert {f"{name} {number}" for number in range(int(key.split()[-1]))} <= said.keys()
        assert labels.undoable(place) == (1 if said else 0)
        known = len(said)
    assert known > 40
