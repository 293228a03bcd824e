"""CARS196: 8,054 training images of the first 98 models, 8,131 test images of the other 98.

    python train_main.py --config=configs/cars.py:rll --config.data.source=cars196

Needs the folder with cars_annos.mat and car_ims/, bn_inception-52deb4733.pth (for other losses than `:rll`
resnet50-0676ba61.pth), see `tfrank.configs.papers`, and a GPU. The model sees the whole image, as in the
papers; --config.data.region=box crops it to the car.

Published Recall@K in %, RLL's Table 3, GoogLeNet V2, 64 dimensions:

    loss                       1     2     4     8
    RLL-Simpler-H           73.7  82.4  88.8  93.3
    Triplet, semi-hard      51.5  63.8  73.5  82.4
    Lifted structure        53.0  65.7  76.0  84.3
    N-pairs                 53.9  66.8  77.8  86.4
    Proxy-NCA               73.2  82.4  86.4  88.7
    Multi-similarity        77.3  85.3  90.5  94.2
    SoftTriple              78.6  86.6  91.8  95.4

`papers.get_small_config` explains m, T_n, the length and the schedule of `:rll`, and the settings of other
losses.
"""

from tfrank.configs import papers


def get_config(loss: str = ""):
    config = papers.get_small_config("cars", loss)
    papers.publish(
        config,
        {
            "RLL-Simpler-H": (73.7, 82.4, 88.8, 93.3),
            "Triplet, semi-hard": (51.5, 63.8, 73.5, 82.4),
            "Lifted structure": (53.0, 65.7, 76.0, 84.3),
            "N-pairs": (53.9, 66.8, 77.8, 86.4),
            "Proxy-NCA": (73.2, 82.4, 86.4, 88.7),
            "Multi-similarity": (77.3, 85.3, 90.5, 94.2),
            "SoftTriple": (78.6, 86.6, 91.8, 95.4),
        },
    )
    return config
