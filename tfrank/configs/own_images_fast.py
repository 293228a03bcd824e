"""Your own photos, the quick way: a head in closed form on a pretrained network, and no training.

    python train_main.py --config=configs/own_images_fast.py --config.data.source=photos

`photos` is as in `tfrank.configs.own_images`, and so is the network. Each training photo is embedded twice,
once with a random augmentation, and the head that whitens features within classes is computed from that. It
has about half of what `own_images` gains over the network as it is (docs/benchmarks.md).
"""

from tfrank.configs import own_images


def get_config(loss: str = ""):
    config = own_images.get_config(loss)
    config.name = "own_images_fast"
    config.train.frozen_until = ""
    config.train.frozen_backbone = True
    config.train.feature_views = 2
    # A run has a step. At this rate it changes nothing.
    config.train.steps, config.train.learning_rate = 1, 1e-12
    return config
