"""Your own photos, the quick way: trains the last stage of a pretrained network, for some steps.

    python train_main.py --config=configs/own_images_fast.py --config.data.source=photos

`photos` is as in `tfrank.configs.own_images`, and so are the network and the head. One view of each training
photo is stored, in place of five, and less of the network is trained on it, in 40 steps. It has more than
half of what `own_images` gains in mAP over the network as it is (docs/benchmarks.md).
"""

from tfrank.configs import own_images


def get_config(loss: str = ""):
    config = own_images.get_config(loss)
    config.name = "own_images_fast"
    config.train.frozen_until = "last_stage"
    config.train.feature_views = 1
    config.train.steps = 40
    # Each evaluation takes as long as two steps.
    config.train.evaluate_every = 20
    return config
