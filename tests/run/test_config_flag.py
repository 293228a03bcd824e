"""The flag `--config`: which file it names, how a file that fails is reported, which fields can be set."""

import re
import shlex

import pytest

from tests import bad_inputs
from tfrank.common.checks import InputError
from tfrank.configs import default, digits, sop
from tfrank.configs.fields import fields_of
from tfrank.run.config_flag import PACKAGE, found, load, with_fields


def test_a_config_of_tfrank_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert found("configs/sop.py:rll") == f"{PACKAGE}/configs/sop.py:rll"
    assert found("configs/nothing.py") == "configs/nothing.py"


def test_a_file_that_is_there_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "sop.py").touch()
    assert found("configs/sop.py:rll") == "configs/sop.py:rll"


def test_what_follows_the_colon_is_given_to_get_config(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("from tfrank.configs import default\nget_config = default.get_config\n")
    assert load(str(path)).loss.name == "pnp"
    assert load(f"{path}:smooth_ap").loss.name == "smooth_ap"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "none.py has no function .* that returns a config"),
        ("no_function", "no_function.py has no function .* that returns a config"),
        (
            "cut_off",
            r"cut_off.py cannot be loaded: SyntaxError: .* \(cut_off.py, line 1\)",
        ),
        ("unknown_field", 'unknown_field.py cannot be loaded: line 6, AttributeError: .*stepps.*"steps"'),
        ("missing_module", "missing_module.py cannot be loaded: line 1, ModuleNotFoundError: No module"),
    ],
)
def test_a_config_that_fails_is_reported_with_its_line_and_its_error(tmp_path, name, words):
    path = tmp_path / f"{name}.py"
    path.write_text(bad_inputs.CONFIGS[name])
    with pytest.raises(InputError, match=words):
        load(str(path))


def test_fields_are_set_with_their_types():
    config = digits.get_config()
    words = ["--config.train.steps=7", "--config.seed", "3", "--noconfig.train.tf32"]
    config = with_fields(config, ["program", *words, "--config.data.train=8", "--config.data.train=9"])
    assert (config.train.steps, config.seed, config.train.tf32) == (7, 3, False)
    assert config.data.train == (8, 9)


def test_the_examples_in_the_default_config_set_tuples_and_entries_of_dicts():
    meanings = " ".join(field.declaration.meaning for field in fields_of(default.get_config().train))
    examples = shlex.split(" ".join(re.findall(r"--config\.train\.(?:\w|\.)+=(?:'.*?'|[\w,]+)", meanings)))
    assert len(examples) == 7
    config = default.get_config()
    config = with_fields(config, ["program", *(e for e in examples if "{" not in e)])
    assert config.train.no_decay == ("bias", "gamma")
    assert config.train.matryoshka == (256, 128, 64, 32)
    assert config.train.trackers == ("tensorboard", "mlflow")
    assert config.train.learning_rate_multipliers.to_dict() == {"embedding": 10}
    config = with_fields(config, ["program", *(e for e in examples if "{" in e)])
    assert config.train.learning_rate_multipliers.to_dict() == {"embedding": 10, "embedding/bias": 20}


def test_a_whole_number_is_a_float_where_the_field_is_one_and_a_list_a_tuple():
    config = digits.get_config()
    config.train.learning_rate, config.evaluation.scales = 1, [0.5]
    assert isinstance(config.train.learning_rate, float) and config.evaluation.scales == (0.5,)
    with pytest.raises(TypeError, match="`steps` takes a value of type int, not 'many'"):
        config.train.steps = "many"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--config.train.learning_rate_multipliers=embedding=10", "Expected a dict of Python"),
        (
            "--config.train.learning_rate_multipliers.a/b=10",
            '`a/b` is no Python name. .*"a/b": VALUE',
        ),
        ("--config.train.step=7", 'Unknown config field .* Did you mean "steps"?'),
        ("--noconfig.train.xlaa", "Unknown config field `config.train.xlaa`"),
        ("--config.seed.x=7", "`config.seed` is one value"),
        ("--config.seed=x", "Expected a whole number"),
        ("--config.seed", "Missing value for flag --config.seed"),
        ("--workdi=x", "There is no flag --workdi"),
        ("steps", "'steps' is no flag"),
    ],
)
def test_what_is_no_field_is_refused(argument, words):
    with pytest.raises(InputError, match=words):
        with_fields(sop.get_config(), ["program", argument])
