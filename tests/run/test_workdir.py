"""What a run's folder remembers, and who may work in it."""

import json
from typing import NamedTuple

import pytest

from tfrank.common.checks import InputError
from tfrank.common.files import locked
from tfrank.configs import digits, own_images
from tfrank.run import workdir
from tfrank.run.workdir import (
    as_begun,
    check_config_of,
    check_model_of,
    check_path,
    check_records_of,
    check_same_config,
    note_on_training_records,
    save_config,
)


def has_checkpoint(folder):
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "ckpt-3.index").touch()


def test_a_run_has_begun_where_a_checkpoint_is_even_if_the_list_of_them_is_lost(tmp_path):
    config = digits.get_config()
    check_config_of(str(tmp_path), config)
    config.train.learning_rate = 0.5
    check_config_of(str(tmp_path), config)  # No step was saved, so this may still change.
    save_config(str(tmp_path), config, 300)
    has_checkpoint(tmp_path)
    config.train.learning_rate = 0.1
    with pytest.raises(InputError, match=r"train\.learning_rate: 0\.5 before, 0\.1 now"):
        check_config_of(str(tmp_path), config)


def test_a_resumed_run_keeps_the_fit_that_it_chose(tmp_path):
    config = own_images.get_config()
    assert as_begun(str(tmp_path), config).data.fit == "auto"
    config.data.fit = "whole"
    save_config(str(tmp_path), config, 300)
    has_checkpoint(tmp_path)
    again = as_begun(str(tmp_path), own_images.get_config())
    assert again.data.fit == "whole"
    check_config_of(str(tmp_path), again)


def test_records_that_were_divided_anew_since_a_run_trained_are_warned_of(tmp_path):
    class Records(NamedTuple):
        name: str

        def fingerprint(self):
            return self.name

    def missing():
        raise InputError("There are no training records.")

    assert note_on_training_records(str(tmp_path), missing) == ""  # An earlier version left nothing of a run.
    check_records_of(str(tmp_path), {"train": "those", "test": "these"})
    assert note_on_training_records(str(tmp_path), lambda: Records("those")) == ""
    assert "trained on other records" in note_on_training_records(str(tmp_path), lambda: Records("other"))
    assert "(There are no training records.)" in note_on_training_records(str(tmp_path), missing)


def test_before_a_run_has_begun_the_path_of_test_records_may_change_and_the_test_classes_may_not(tmp_path):
    config = digits.get_config()
    check_config_of(str(tmp_path), config)
    config.data.test_records = "elsewhere"
    check_config_of(str(tmp_path), config)
    config.data.test = (7,)
    with pytest.raises(InputError, match=r"another config \(data\.test: .* now\)"):
        check_config_of(str(tmp_path), config)


def test_a_field_that_the_saved_config_lacks_was_added_later_and_had_its_default(tmp_path):
    config = digits.get_config()
    check_config_of(str(tmp_path), config)
    has_checkpoint(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    del saved["train"]["layer_decay"], saved["model"]["drop_path"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    check_config_of(str(tmp_path), config)
    workdir.check_model_of(str(tmp_path), config.model)
    config.train.layer_decay, config.model.drop_path = 0.5, 0.1
    with pytest.raises(InputError, match=r"train\.layer_decay: 1\.0 before, 0\.5 now"):
        check_config_of(str(tmp_path), config)
    with pytest.raises(InputError, match=r"model\.drop_path: 0\.0 before, 0\.1 now"):
        workdir.check_model_of(str(tmp_path), config.model)


def test_a_resume_may_change_how_long_it_goes_on_and_how_it_is_measured(tmp_path):
    config = digits.get_config()
    check_config_of(str(tmp_path), config)
    has_checkpoint(tmp_path)
    config.train.steps += 100
    config.evaluation.recall_at = (1, 2)
    config.evaluation.whitening = 0.25
    config.data.records = "elsewhere"
    check_config_of(str(tmp_path), config)
    save_config(str(tmp_path), config, 400)
    assert json.loads((tmp_path / "config.json").read_text())["evaluation"]["whitening"] == 0.25


def test_a_run_cannot_end_before_the_steps_that_it_has_taken(tmp_path):
    config = digits.get_config()
    check_config_of(str(tmp_path), config)
    has_checkpoint(tmp_path)
    before, config.train.steps = (tmp_path / "config.json").read_text(), 2
    with pytest.raises(InputError, match="has taken 3 steps already, so it cannot end at step 2"):
        save_config(str(tmp_path), config, 2)
    assert (tmp_path / "config.json").read_text() == before


def test_a_run_may_end_at_the_steps_that_it_has_taken(tmp_path):
    config = digits.get_config()
    check_config_of(str(tmp_path), config)
    has_checkpoint(tmp_path)
    config.train.steps = 3
    save_config(str(tmp_path), config, 3)
    assert json.loads((tmp_path / "config.json").read_text())["train"]["steps"] == 3


@pytest.mark.parametrize("name", ["a[1]b", "a\\b"])
def test_a_folder_in_which_tensorflow_finds_nothing_again_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"as a pattern.*Choose another folder"):
        check_path(str(tmp_path / name))
    with locked(str(tmp_path / name)):  # Records and numbers may lie there.
        pass


@pytest.mark.parametrize("name", ["run", "a*b", "a?b", "a{b,c}d"])
def test_a_folder_of_any_other_name_is_not(tmp_path, name):
    check_path(str(tmp_path / name))


def test_a_model_is_evaluated_by_any_config_of_the_same_model(tmp_path):
    config = digits.get_config()
    with pytest.raises(InputError, match=r"There is no run in .* --model or --embeddings"):
        check_model_of(str(tmp_path), config.model)
    check_config_of(str(tmp_path), config)
    config.train.learning_rate, config.data.test, config.loss.alpha = 9.0, (7,), 1.0
    config.evaluation.rerank = True
    check_model_of(str(tmp_path), config.model)
    config.model.embedding_dim = 7
    with pytest.raises(InputError, match=r"another config \(model\.embedding_dim: 256 before, 7 now\)"):
        check_model_of(str(tmp_path), config.model)


def test_machines_of_a_run_agree_on_everything_but_paths(tmp_path):
    config = digits.get_config()
    with pytest.raises(InputError, match="Worker 0 has saved no config in"):
        check_same_config(str(tmp_path), config)
    check_config_of(str(tmp_path), config)
    config.data.source = "elsewhere"
    check_same_config(str(tmp_path), config)
    config.train.steps += 1
    with pytest.raises(InputError, match=r"train\.steps: 300 before, 301 now"):
        check_same_config(str(tmp_path), config)


@pytest.mark.parametrize("content", ["", "{bad", "[1]", "{}"])
def test_a_damaged_config_is_said(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config\.json is damaged .*Choose another --workdir"):
        check_model_of(str(tmp_path), digits.get_config().model)


def test_records_that_changed_stop_a_run(tmp_path):
    check_records_of(str(tmp_path), {"train": "a", "test": "b"})
    check_records_of(str(tmp_path), {"train": "a", "test": "b"})
    with pytest.raises(InputError, match=r"The records of the run in .* changed since it began"):
        check_records_of(str(tmp_path), {"train": "a", "test": "c"})


def test_one_at_a_time_works_in_a_folder_and_leaves_it_to_the_next_whatever_happens(tmp_path):
    folder = str(tmp_path / "new" / "folder")
    with locked(folder), pytest.raises(InputError, match="Another process is at work in"), locked(folder):
        pass
    with pytest.raises(ZeroDivisionError), locked(folder):
        raise ZeroDivisionError
    with locked(folder):
        pass


def test_a_run_goes_to_a_folder_of_its_name_and_loss():
    config = digits.get_config("addons/n_pairs")
    assert workdir.default_workdir(config) == "runs/digits_addons_n_pairs"


@pytest.mark.parametrize(
    "data, folder",
    [
        (dict(), "own_images_pnp"),
        (dict(records="records/photos"), "own_images_photos_pnp"),
        (dict(records="gs://bucket/my photos/"), "own_images_my_photos_pnp"),
        (dict(source="photos.v2"), "own_images_photos.v2_pnp"),
        (dict(source="elsewhere/photos.CSV", name="csv"), "own_images_photos_pnp"),
        (dict(source="photos.tar.gz"), "own_images_photos_pnp"),
        (dict(records="records/sop", name="sop"), "own_images_pnp"),
    ],
)
def test_runs_on_two_data_sets_of_a_user_go_to_two_folders(data, folder):
    config = own_images.get_config()
    config.data.update(data)
    assert workdir.default_workdir(config) == f"runs/{folder}"
