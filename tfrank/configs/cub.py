"""CUB-200-2011, birds: 5,864 training images of the first 100 species, 5,924 test images of the other 100.

    python train_main.py --config=configs/cub.py:rll --config.data.source=CUB_200_2011

Needs the unpacked folder (images/, images.txt and the other lists), bn_inception-52deb4733.pth (for other
losses than `:rll` resnet50-0676ba61.pth), see `tfrank.configs.papers`, and a GPU. The model sees the whole
image, as in the papers; --config.data.region=box crops it to the bird.

Published Recall@K in %, RLL's Table 4, GoogLeNet V2, 64 dimensions:

    loss                       1     2     4     8
    RLL-Simpler-H           56.7  68.1  77.7  85.8
    Triplet, semi-hard      42.6  55.0  66.4  77.2
    Lifted structure        43.6  56.6  68.6  79.6
    N-pairs                 45.4  58.4  69.5  79.5
    Proxy-NCA               49.2  61.9  67.9  72.4
    Multi-similarity        57.4  69.8  80.0  87.8
    SoftTriple              60.1  71.9  81.2  88.5

`papers.get_small_config` explains m, T_n, the length and the schedule of `:rll`, and the settings of other
losses.
"""

from tfrank.configs import papers


def get_config(loss: str = ""):
    config = papers.get_small_config("cub", loss)
    papers.publish(
        config,
        {
            "RLL-Simpler-H": (56.7, 68.1, 77.7, 85.8),
            "Triplet, semi-hard": (42.6, 55.0, 66.4, 77.2),
            "Lifted structure": (43.6, 56.6, 68.6, 79.6),
            "N-pairs": (45.4, 58.4, 69.5, 79.5),
            "Proxy-NCA": (49.2, 61.9, 67.9, 72.4),
            "Multi-similarity": (57.4, 69.8, 80.0, 87.8),
            "SoftTriple": (60.1, 71.9, 81.2, 88.5),
        },
    )
    return config
