"""Configs: every field is used, every loss has its recipe."""

import importlib
import inspect
import pathlib
import re

import pytest

from configs import default
from tfrank import LOSSES, experiment, settings
from tfrank.checks import InputError
from tfrank.losses import ADDONS
from tfrank.losses.proxies import PROXY_LOSSES
from tfrank.objective import build_loss, loss_fields
from tfrank.workdir import flatten

CLASSES = LOSSES | PROXY_LOSSES
ROOT = pathlib.Path(default.__file__).parents[1]
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__")


def test_every_loss_has_a_recipe_of_exactly_its_fields_and_defaults():
    wanted = {name: dict(addon.defaults) for name, addon in ADDONS.items()}
    for name, loss in CLASSES.items():
        fields = inspect.signature(loss).parameters
        wanted[name] = {key: fields[key].default for key in loss_fields(name)}
        assert set(fields) - set(wanted[name]) <= {"labels", "reduction", "name"}
    assert wanted == default.LOSS_RECIPES


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("loss", ["", *CLASSES])
def test_every_config_takes_every_loss_recipe_and_builds_it(name, loss):
    config = importlib.import_module(f"configs.{name}").get_config(loss)
    assert isinstance(build_loss(config, labels=[0, 1]), CLASSES[loss or "pnp"])


def test_a_memory_is_put_around_any_loss_that_ranks_a_gallery():
    config = default.get_config("rll")
    config.train.update(memory_size=100, memory_warm_up=7)
    loss = build_loss(config, labels=[0])
    assert (loss.size, loss.warm_up, loss.loss.name) == (100, 7, "rll")


@pytest.mark.parametrize("size, warm_up, joins", [(512, 0, 5), (513, 4, 6), (100, 7, 8)])
def test_a_run_that_ends_before_its_memory_joins_is_refused(size, warm_up, joins):
    """In batches of 128."""
    config = default.get_config()
    config.train.update(memory_size=size, memory_warm_up=warm_up)
    settings.check_memory(config, steps=joins)
    with pytest.raises(InputError, match=rf"ends after {joins - 1} steps, and .* only join in step {joins}:"):
        settings.check_memory(config, steps=joins - 1)


@pytest.mark.parametrize("name", ["proxy_nca", "addons/triplet_hard"])
def test_a_memory_is_refused_where_the_loss_has_no_gallery(name):
    config = default.get_config(name)
    config.train.memory_size = 100
    with pytest.raises(InputError, match=r"ranks no gallery .*memory_size=0, or take one of pnp"):
        build_loss(config, labels=[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_adds_no_field_to_the_defaults(name):
    def fields(tree):
        return {key: fields(value) if hasattr(value, "items") else None for key, value in tree.items()}

    config = importlib.import_module(f"configs.{name}").get_config()
    assert fields(config) == fields(default.get_config())


def test_every_field_is_read_somewhere():
    files = ("experiment.py", "objective.py", "inference.py", "settings.py")
    source = "".join((ROOT / "tfrank" / name).read_text() for name in files)
    config = default.get_config()
    for group in ("data", "train", "evaluation"):
        for field in config[group]:
            split = group == "data" and field in ("train", "test")
            read = f"config.{group}.{field}" in source or re.search(rf"\b{group}\.{field}\b", source) or split
            assert read or f"config.{group}.{field}" in (ROOT / "train_main.py").read_text(), field
    # The fields of the model are passed on as keywords.
    from tfrank.models.embedding import embedding_model

    fields = {"image_size", *config.model} - {"weights"}
    assert fields == set(inspect.signature(embedding_model).parameters)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_within_its_own_ranges(name):
    experiment.check_config(importlib.import_module(f"configs.{name}").get_config())


def test_every_whole_number_has_a_least_value():
    flat = flatten(default.get_config().to_dict())
    whole = {k for k, v in flat.items() if isinstance(v, int) and not isinstance(v, bool)}
    assert whole == set(settings.LEAST)


def test_an_unknown_loss_names_the_known_ones():
    with pytest.raises(ValueError, match=r"Unknown loss 'smoothap'.*'pnp', 'smooth_ap'"):
        default.get_config("smoothap")


def test_a_field_of_another_loss_is_refused_with_the_fields_of_this_one():
    config = default.get_config()
    config.loss.name = "smooth_ap"
    message = r"Loss 'smooth_ap' has no field '(alpha|b|variant)'.* Its fields are temperature, include_self"
    with pytest.raises(InputError, match=message):
        build_loss(config, labels=[0, 1])


@pytest.mark.parametrize("steps, epochs, expected", [(600, 0.0, 600), (0, 2.0, 28), (0, 0.01, 1)])
def test_steps_and_epochs_are_both_accepted(steps, epochs, expected, capsys):
    config = default.get_config()
    config.train.steps, config.train.epochs = steps, epochs
    assert settings.total_steps(config, num_images=1800) == expected
    assert f"{expected} steps of 128 images" in capsys.readouterr().out


@pytest.mark.parametrize("steps, epochs", [(0, 0.0), (5, 5.0)])
def test_one_of_steps_and_epochs_is_wanted(steps, epochs):
    config = default.get_config()
    config.train.steps, config.train.epochs = steps, epochs
    with pytest.raises(InputError, match="Give one of"):
        settings.total_steps(config, num_images=1800)
