"""The config of a run that was made before."""

import json

import pytest

from tests.configs.test_configs import CLASSES, CONFIGS, config_of
from tfrank.configs import default, of_run, sop
from tfrank.configs.fields import tree
from tfrank.losses import ADDONS
from tfrank.run import experiment, settings
from tfrank.run.objective import build_loss
from tfrank.run.workdir import check_config_of


def saved(config, folder):
    """The path of the file that a run saves its config in."""
    check_config_of(str(folder), config)
    return str(folder / "config.json")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_has_its_config_again(name, tmp_path):
    config = config_of(name)
    again = of_run.get_config(saved(config, tmp_path))
    assert again == config
    experiment.check_config(settings.resolved(again))


@pytest.mark.parametrize("loss", [*CLASSES, *ADDONS])
def test_every_loss_has_its_fields_again(loss, tmp_path):
    config = default.get_config(loss)
    again = of_run.get_config(saved(config, tmp_path))
    assert again.loss == config.loss
    if loss in CLASSES:
        build_loss(again.loss, labels=[0, 1])


def test_what_was_changed_on_the_command_line_is_there_again(tmp_path):
    config = sop.get_config("recall_at_k")
    config.loss.ks = (1, 2)
    config.data.update(train=("a", "b"), crop_area=(0.1, 0.9))
    config.evaluation.update(scales=(0.7, 1.0), recall_at=(), protocols=("random_gallery",))
    config.train.no_decay = ("bias", "gamma")
    config.train.learning_rate_multipliers = {"embedding": 10.0, "embedding/bias": 0.5}
    again = of_run.get_config(saved(config, tmp_path))
    assert again == config
    assert isinstance(again.loss.ks, tuple) and isinstance(again.evaluation.scales, tuple)
    # A lossless round trip: what is saved again is the same file.
    assert tree(again) == tree(config)


def changed(config, folder, change):
    """The path of a config that another version may have saved."""
    path = saved(config, folder)
    with open(path) as file:
        tree = json.load(file)
    change(tree)
    with open(path, "w") as file:
        json.dump(tree, file)
    return path


def test_a_field_that_is_newer_than_the_run_has_its_default(tmp_path):
    config = default.get_config("recall_at_k")
    config.train.steps = 7

    def drop(tree):
        del tree["evaluation"]["nmi"], tree["evaluation"]["published"], tree["data"]["features"]["text"]
        del tree["train"]["clip_norm"], tree["loss"]["simix"]

    assert of_run.get_config(changed(config, tmp_path, drop)) == config


def test_a_field_that_is_no_more_is_left_out(tmp_path):
    config = default.get_config()

    def add(tree):
        tree["gone"] = {"all": 1}
        tree["train"]["gone"] = 2
        tree["loss"]["gone"] = 3

    assert of_run.get_config(changed(config, tmp_path, add)) == config


def clear(tree):
    tree.clear()


@pytest.mark.parametrize(
    "change",
    [
        clear,
        lambda tree: tree.update(loss={"name": "of another version"}),
        lambda tree: tree.update(train=3),
        lambda tree: tree["train"].update(steps="many"),
    ],
)
def test_what_is_no_config_is_said_with_its_path(change, tmp_path):
    path = changed(default.get_config(), tmp_path, change)
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        of_run.get_config(path)


@pytest.mark.parametrize("content", ["", "{bad", "[]"])
def test_a_damaged_file_is_said_with_its_path(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        of_run.get_config(str(tmp_path / "config.json"))
