"""Files that are written whole or not at all."""

import concurrent.futures
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import tensorflow as tf

from tests.command_lines import ROOT
from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.common.files import atomic_folder, atomic_write, check_reachable, locked, write_json


def test_a_writing_that_fails_leaves_the_file_of_before_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), atomic_write(str(path), "w") as file:
        file.write("half")
        raise ZeroDivisionError
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["a"]


def test_several_who_write_one_file_at_once_do_not_meet(tmp_path):
    """The last one wins; none sees the file of another, half written or gone."""

    def write(number):
        for _ in range(50):
            with atomic_write(str(tmp_path / "a"), "w") as file:
                file.write(str(number) * 1000)
            text = (tmp_path / "a").read_text()
            assert len(text) == 1000 and len(set(text)) == 1

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_written_again_after_a_kill_leaves_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_text("before")
    child = os.fork()
    if not child:
        with atomic_write(str(path)) as file:
            file.write(b"half" * 10_000)
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert path.read_text() == "before" and len(os.listdir(tmp_path)) == 2
    with atomic_write(str(path), "w") as file:
        file.write("after")
    assert path.read_text() == "after" and os.listdir(tmp_path) == ["a"]


def written(folder, text):
    with atomic_folder(str(folder)) as temporary:
        for name in "bc":
            with open(os.path.join(temporary, name), "w") as file:
                file.write(text)


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    written(tmp_path / "a", "before")
    with pytest.raises(ZeroDivisionError), atomic_folder(str(tmp_path / "a")) as temporary:
        os.mkdir(os.path.join(temporary, "half"))
        raise ZeroDivisionError
    assert (tmp_path / "a" / "b").read_text() == "before" and os.listdir(tmp_path) == ["a"]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    written(tmp_path / "link", "after")
    assert (tmp_path / "a" / "b").read_text() == "before" and (tmp_path / "link" / "c").read_text() == "after"
    assert not (tmp_path / "link").is_symlink()


def test_several_who_write_one_folder_at_once_do_not_meet_nor_what_a_kill_left(tmp_path):
    (tmp_path / "a.tmp" / "left").mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: written(tmp_path / "a", str(number) * 1000), range(60)))
    assert os.listdir(tmp_path) == ["a"] and sorted(os.listdir(tmp_path / "a")) == ["b", "c"]
    texts = {(tmp_path / "a" / name).read_text() for name in "bc"}
    assert len(texts) == 1 and len(set(texts.pop())) <= 2


def test_a_link_in_the_place_of_the_temporary_folder_is_not_followed(tmp_path):
    (tmp_path / "other" / "mine").mkdir(parents=True)
    (tmp_path / "a.tmp").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"a\.tmp"):
        written(tmp_path / "a", "mine")
    assert os.listdir(tmp_path / "other") == ["mine"]


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / "a.tmp").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"a\.tmp"), atomic_write(str(tmp_path / "a")):
        pass
    assert (tmp_path / "other").read_text() == "mine"


def test_a_file_system_without_locks_is_written_to(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(str(tmp_path)):
        write_json(str(tmp_path / "a"), {"map": 0.5})
    assert json.loads((tmp_path / "a").read_text()) == {"map": 0.5}


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "metrics.json"
    write_json(str(path), {"map": 0.5})
    with pytest.raises(TypeError):
        write_json(str(path), {"map": object()})
    assert json.loads(path.read_text()) == {"map": 0.5}
    assert os.listdir(tmp_path) == ["metrics.json"]


ASKING = """
from tfrank.common import commands, files
from tfrank.data.{module} import {function}
files.SECONDS_TO_ANSWER = 2
commands.run(lambda _: {call})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, function, call",
    [
        ("record_folder", "load_summary", "load_summary('gs://bucket/records')"),
        (
            "prepare.scan",
            "Features, open_foreign_records",
            "open_foreign_records(['*'], 'gs://bucket/records', features=Features(), cache='', processes=1)",
        ),
    ],
)
def test_a_store_that_does_not_answer_is_said_to_in_one_line_and_seconds(module, function, call):
    """A server that takes connections and says nothing stands for the network that leads to the store."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", ASKING.format(module=module, function=function, call=call)],
            env={**os.environ, "https_proxy": proxy, "http_proxy": proxy},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 1
    assert re.fullmatch(
        r"Error: Cannot reach gs://bucket/records\S* \(no answer within 2 s\)\. Check .*\n", done.stderr
    )


def test_a_store_that_cannot_be_found_is_said_to_in_one_line(monkeypatch):
    def fail(path):
        raise tf.errors.UnavailableError(None, None, "Could not resolve hostname\n\t when reading")

    monkeypatch.setattr(tf.io.gfile, "exists", fail)
    with pytest.raises(InputError, match=r"^Cannot reach gs://x/y \(Could not resolve hostname\)\."):
        check_reachable("gs://x/y")
    check_reachable("/a/local/path")


@pytest.fixture
def folder_of_another(tmp_path):
    """A folder with a file, and with what a reader must not follow or wait for."""
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    (folder / "sub").mkdir(parents=True)
    secret.mkdir()
    (secret / "a").write_text("secret")
    (folder / "sub" / "a").write_text("own")
    (folder / "link").symlink_to(secret / "a")
    (folder / "inner").symlink_to(folder / "sub" / "a")
    (folder / "away").symlink_to(secret)
    (folder / "nowhere").symlink_to(tmp_path / "none")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        yield folder


INSIDE = ["link", "inner", "away/a", "nowhere", "pipe", "socket", "sub"]
OUTSIDE = ["../secret/a", "sub/../sub/a", "/etc/passwd", "", ".", "sub//a", "sub/a/"]


@pytest.mark.parametrize("name", [*INSIDE, *OUTSIDE])
def test_only_a_regular_file_that_lies_below_the_folder_is_opened(folder_of_another, name):
    with pytest.raises(files.NotRegular, match=r"only regular files are read: '.*(folder|passwd)"):
        files.open_below(str(folder_of_another), name)


def test_a_regular_file_below_a_folder_is_opened_also_if_the_folder_is_a_link(folder_of_another, tmp_path):
    (tmp_path / "linked").symlink_to(folder_of_another)
    for folder in (folder_of_another, tmp_path / "linked"):
        for names in (["sub", "a"], ["sub/a"]):
            with files.open_below(str(folder), *names) as file:
                assert file.read() == b"own"
    with pytest.raises(FileNotFoundError) as error:
        files.open_below(str(folder_of_another), "sub", "b")
    assert error.value.filename == str(folder_of_another / "sub" / "b")


def test_a_file_that_is_refused_leaves_nothing_open(folder_of_another):
    before = len(os.listdir("/proc/self/fd"))
    for name in [*INSIDE, *OUTSIDE]:
        with pytest.raises(files.NotRegular):
            files.open_below(str(folder_of_another), name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_ones_own_may_be_a_link_and_no_pipe(folder_of_another):
    with files.open_regular(str(folder_of_another / "link")) as file:
        assert file.read() == b"secret"
    for name in ("pipe", "socket", "sub"):
        with pytest.raises(files.NotRegular):
            files.open_regular(str(folder_of_another / name))


def test_a_folder_that_a_library_reads_has_regular_files_alone(folder_of_another):
    for names in (["sub"], ["sub", "a"], ["none"]):
        files.check_regular(str(folder_of_another), *names)
    for name in ("link", "away/a", "pipe", "socket", "../secret", "sub/.."):
        with pytest.raises(files.NotRegular):
            files.check_regular(str(folder_of_another), name)
    with pytest.raises(files.NotRegular):
        files.check_regular(str(folder_of_another.parent), "folder")
