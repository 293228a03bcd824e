"""Files that are written whole or not at all."""

import concurrent.futures
import json
import os

import pytest

from tfrank.files import atomic_write, write_json


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


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "metrics.json"
    write_json(str(path), {"map": 0.5})
    with pytest.raises(TypeError):
        write_json(str(path), {"map": object()})
    assert json.loads(path.read_text()) == {"map": 0.5}
    assert os.listdir(tmp_path) == ["metrics.json"]
