"""What the fixed part of a network computes is stored, and computed anew where it would be other."""

import numpy as np
import tensorflow as tf

from tests.data import image_records, write_records
from tests.run.test_trained import TRAIN_IMAGES, small_config
from tfrank.run import experiment, frozen_backbone


def test_features_are_computed_anew_where_what_they_depend_on_changed(tmp_path):
    index = write_records(image_records(), str(tmp_path), "train")

    def features(pooling, precision="float32"):
        config = small_config()
        config.model.pooling = pooling
        config.train.update(frozen_backbone=True, feature_views=1, precision=precision)
        model = experiment.build_training(
            config, str(tmp_path / "run"), tf.distribute.get_strategy(), 1, TRAIN_IMAGES
        ).model
        return np.array(frozen_backbone.stored(config, model, str(tmp_path), index, "train"))

    average, largest, again = features("average"), features("max"), features("average")
    assert not np.allclose(average, largest)
    np.testing.assert_array_equal(average, again)
    assert not np.array_equal(features("average", "mixed_bfloat16"), average)
