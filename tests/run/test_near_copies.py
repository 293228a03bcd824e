"""Near copies of a test set: the sentence before training, and what the report shows of them."""

import numpy as np
import pytest
from PIL import Image

from tests.data.prepare.test_copies import photos  # noqa: F401
from tfrank.configs import digits
from tfrank.data.index import select
from tfrank.data.prepare.builder import prepare
from tfrank.data.record_folder import load_copies, open_split, shared
from tfrank.evaluation.report.charts import percent
from tfrank.run.datasets import Data
from tfrank.run.evaluation_results import about, evaluate_embeddings
from tfrank.run.evaluation_results import test_set_of as set_of
from tfrank.run.near_copies import sentences_on_copies
from tfrank.run.report_writer import write_evaluation


@pytest.fixture
def splits(photos, tmp_path):  # noqa: F811
    """Train and test, of which one photo of test has a near copy in train, and two have each other."""
    first = str(tmp_path / "first")
    prepare("folder", str(photos), first)
    train, test = ([image.decode() for image in open_split(first, split).id] for split in ("train", "test"))
    for source, target in ((test[0], train[0]), (test[1], test[1])):
        copy = Image.open(photos / source).resize((160, 130))
        copy.save((photos / target).with_name("copy.jpg"), quality=70)
    prepare("folder", str(photos), str(tmp_path / "records"))
    return [open_split(str(tmp_path / "records"), split) for split in ("train", "test")]


def test_copies_in_train_and_in_validation_are_counted_before_training(splits):
    train, test = splits
    [said] = sentences_on_copies(Data(train, None, test, None, train.label))
    assert said.startswith("Photos that have a near copy elsewhere: 1 of test in train. ")
    held_out = np.array([b"copy" in image for image in train.id])
    parts = select(train, np.flatnonzero(~held_out)), select(train, np.flatnonzero(held_out))
    assert "1 of test in validation" in sentences_on_copies(Data(*parts, test, None, parts[0].label))[0]


def test_the_report_has_their_pictures_and_the_recall_without_them(splits, tmp_path):
    train, test = splits
    [copy] = [image.decode() for image in train.id if b"copy" in image]
    [copied] = [one.id for one in shared(load_copies(str(tmp_path / "records")), "test", "train")]
    place = test.id.tolist().index(copied.encode())
    config = digits.get_config()
    config.data.image_size = 32
    # All are right but the photo that has a copy in train.
    rows = np.eye(int(test.label.max()) + 1, dtype=np.float32)[test.label]
    rows[place] = rows[test.label != test.label[place]][0]
    data = set_of(test, None)
    results = evaluate_embeddings(config.evaluation, rows, data)
    facts = about(config.evaluation, data, model="a model", search="exact")
    *_, path = write_evaluation(str(tmp_path / "report"), config, results, test, about=facts, title="A title")
    with open(path) as file:
        page = file.read()
    scores = results.main.per_query["recall_at_1"]
    shares = percent(scores.mean()), percent(np.delete(scores, place).mean())
    assert "1 query has a near copy in train. Recall@1 is {} with them, {} without".format(*shares) in page
    assert "2 queries have a near copy in test" in page and "What would help most" in page
    assert f'title="train: {copy}"' in page and f'title="test: {copied}"' in page
