"""Whether ScaNN can be imported is tried once, in another process, and the reason is one line."""

import sys

import pytest

from tfrank.evaluation.nearest import scann_probe, searchers


@pytest.mark.parametrize(
    "program, reason",
    [
        ("pass", ""),
        ("raise ImportError('no such symbol')", "ImportError: no such symbol"),
        ("import sys; sys.exit(3)", "status 3"),
    ],
)
def test_why_a_program_fails_is_one_line(program, reason):
    assert scann_probe._reason([sys.executable, "-c", program]) == reason


def test_a_scann_that_takes_too_long_to_import_is_not_absent_and_is_tried_again(monkeypatch, tmp_path):
    (tmp_path / "scann.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scann", raising=False)
    scann_probe._tried.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(scann_probe, "SECONDS", 0.5)
        name, why = searchers.usable("scann")
    assert name == "exact" and "may be there: importing it had not ended after 0.5 seconds" in why
    assert "cannot be imported" not in why and "Try again" in why
    (tmp_path / "scann.py").write_text("")
    assert searchers.usable("scann") == ("scann", "")
    scann_probe._tried.cache_clear()
