"""The flag `--config`: tfrank's own configs are found from any folder; a file that is there comes first."""

from tfrank.run.config_flag import PACKAGE, _found


def test_a_config_of_tfrank_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _found("configs/sop.py:rll") == f"{PACKAGE}/configs/sop.py:rll"
    assert _found("configs/nothing.py") == "configs/nothing.py"


def test_a_file_that_is_there_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "sop.py").touch()
    assert _found("configs/sop.py:rll") == "configs/sop.py:rll"
