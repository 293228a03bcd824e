"""Templates and their pairs, from IJB-C's lists as InsightFace has them to what lies beside the records."""

import copy
import dataclasses
import os

import numpy as np
import pytest
import tensorflow as tf

from tests.data.prepare import picture
from tests.data.sources.test_faces import write
from tfrank.common.checks import InputError
from tfrank.configs import vgg_face2
from tfrank.data.prepare.__main__ import next_command, table
from tfrank.data.prepare.builder import prepare
from tfrank.data.record_folder import load_summary, open_split
from tfrank.data.templates import load_templates
from tfrank.run import datasets, evaluation_results

# Image n is of template n // 2 and media n // 2 + 100; template 5 has the last two.
IMAGES = [f"{n}.jpg {n // 2} {n // 2 + 100}" for n in range(12)]
PAIRS = ["0 1 1", "2 3 1", "0 2 0", "4 5 0"]


@pytest.fixture
def ijbc(tmp_path):
    folder = tmp_path / "IJBC"
    write(folder / "meta" / "ijbc_face_tid_mid.txt", *IMAGES)
    write(folder / "meta" / "ijbc_template_pair_label.txt", *PAIRS)
    points = " ".join(map(str, range(1, 11)))
    write(folder / "meta" / "ijbc_name_5pts_score.txt", *(f"{n}.jpg {points} 0.9" for n in range(12)))
    (folder / "loose_crop").mkdir()
    for n in range(12):
        (folder / "loose_crop" / f"{n}.jpg").write_bytes(picture(n))
    return folder


def prepare_ijbc(folder, **options):
    output = str(folder.parent / "records")
    return output, prepare("ijb_c", str(folder), output, processes=1, **options)


def test_templates_and_pairs_lie_beside_the_records_and_are_mapped(ijbc, capsys):
    output, summary = prepare_ijbc(ijbc)
    assert "Note: test: 12 images; officially 469,375" in capsys.readouterr().out
    found, index = load_templates(output), open_split(output, "test")
    wanted = [(int(name.split(b".")[0]) // 2, int(name.split(b".")[0]) // 2 + 100) for name in index.id]
    assert found.of(index.id).tolist() == list(map(list, wanted))
    assert found.pairs.tolist() == [[0, 1, 1], [2, 3, 1], [0, 2, 0], [4, 5, 0]]
    assert isinstance(found.pairs, np.memmap) and found.pairs.dtype == np.int32
    assert {name: summary[name] for name in ("templates", "pairs", "positive_pairs")} == {
        **{"templates": 6, "pairs": 4, "positive_pairs": 2},
    }
    assert "\n6 templates to compare in 4 pairs, 2 of one person" in table(summary)
    command = next_command("ijb_c", output, summary, installed=True)
    assert command.endswith(f"={output} --config.data.test_region=face")


def test_other_records_have_no_templates(tmp_path):
    output = str(tmp_path / "digits")
    summary = prepare("digits", "", output, options={"train": [0, 1], "test": [2, 3]}, processes=1)
    assert load_templates(output) is None and "templates" not in table(summary)


def test_the_records_are_a_test_set_of_templates_for_a_config_that_verifies_faces(ijbc):
    config = vgg_face2.get_config()
    config.data.update(test_records=prepare_ijbc(ijbc)[0], test_region="face")
    index, relevance = datasets.build_test_set(config.data, "nowhere")
    test = evaluation_results.test_set_of(index, relevance)
    assert test.grades is None and set(test.labels) == {-1}
    assert test.templates.template.tolist() == [int(name.split(b".")[0]) // 2 for name in index.id]
    evaluation_results.check_evaluation(config.evaluation, test)
    for changes, message in (
        ({"query_expansion": 2}, "Pairs of templates are compared and not ranked"),
        ({"rerank": True}, "so there is nothing to post-process. Set config.evaluation.rerank=False"),
        ({"nmi": True}, r"no class \(label -1\), but these need classes: NMI"),
        ({"protocols": ("leave_one_out",), "verification": False}, "but leave_one_out needs classes"),
    ):
        other = copy.deepcopy(config)
        other.evaluation.update(changes)
        with pytest.raises(InputError, match=message):
            evaluation_results.check_evaluation(other.evaluation, test)


def test_a_test_set_without_templates_cannot_be_measured_by_them():
    config = vgg_face2.get_config()
    config.evaluation.protocols = ("template_pairs",)
    test = evaluation_results.TestSet(np.arange(4) // 2, np.arange(4), np.full(4, ""), np.full(4, -1))
    with pytest.raises(InputError, match=r"has no templates \(templates\.npz beside its records\)"):
        evaluation_results.check_evaluation(config.evaluation, test)


def test_a_template_of_which_one_image_is_left_is_compared_and_one_without_any_is_refused(ijbc):
    bad = [ijbc / "loose_crop" / f"{n}.jpg" for n in (10, 11)]
    bad[0].write_bytes(b"")
    bad[1].write_bytes(b"")
    with pytest.raises(InputError) as error:
        prepare_ijbc(ijbc, max_skipped=0.2)
    output = str(ijbc.parent / "records")
    assert str(error.value) == (
        "No image of template 5 can be used, so its pairs cannot be compared (1 such template, this one of 2"
        f" images). {output}/skipped.csv says what is wrong with them. Put good ones in their place and give"
        " the same command again."
    )
    assert load_summary(output) is None and load_templates(output) is None
    bad[0].write_bytes(picture(10))
    prepare_ijbc(ijbc, max_skipped=0.2)
    found = load_templates(output).of(open_split(output, "test").id)
    assert np.count_nonzero(found[:, 0] == 5) == 1


def test_bad_lists_of_pairs_stop_before_any_image_is_written(ijbc, monkeypatch):
    monkeypatch.setattr("tfrank.data.prepare.builder.shards.write", None)
    write(ijbc / "meta" / "ijbc_template_pair_label.txt", *PAIRS, "0 6 0")
    with pytest.raises(InputError, match="the pair 0 6 0 has template 6, which has no image"):
        prepare_ijbc(ijbc)


def test_records_that_were_copied_to_a_remote_store_keep_their_templates(ijbc):
    output, _ = prepare_ijbc(ijbc)
    tf.io.gfile.makedirs("ram://ijbc")
    assert load_templates("ram://ijbc") is None
    for name in ("templates.npz", "template_pairs.npy"):
        tf.io.gfile.copy(os.path.join(output, name), f"ram://ijbc/{name}", overwrite=True)
    found, wanted = load_templates("ram://ijbc"), load_templates(output)
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def other_pairs(path):
    np.save(path, np.zeros([4, 2], np.int32))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("templates.npz", cut),
        ("template_pairs.npy", cut),
        ("template_pairs.npy", os.remove),
        ("template_pairs.npy", other_pairs),
    ],
)
def test_damaged_files_are_named_with_what_to_do(ijbc, name, damage):
    output, _ = prepare_ijbc(ijbc)
    damage(os.path.join(output, name))
    with pytest.raises(
        InputError, match=rf"^{output}/{name} is damaged \(.*Delete the folder and prepare it"
    ):
        load_templates(output)


def test_templates_of_other_records_are_refused(ijbc):
    output, _ = prepare_ijbc(ijbc)
    index = open_split(output, "test")
    strange = dataclasses.replace(index, id=np.array([b"z.jpg", *index.id[1:]]))
    with pytest.raises(InputError, match=r"^The image 'z\.jpg' has no template in templates\.npz"):
        evaluation_results.test_set_of(strange, load_templates(output))
