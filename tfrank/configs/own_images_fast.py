"""Your own photos, the quick way: trains a head on a pretrained network that pip has installed.

    python train_main.py --config=configs/own_images_fast.py --config.data.source=photos

`photos` is as in `tfrank.configs.own_images`, and so is everything but this: the network is
EfficientNet-Lite0, whose ImageNet weights come with tfrank, at 224 x 224 pixels. It stays as it is, and its
features of four views of each photo are computed once. A head is trained on them, for many steps in little
time. It needs no network connection. On the birds and the objects of the benchmark it gives more, on two
cores, than training the whole of MobileNetV2 at 160 pixels, as `own_images` does. The head keeps all
1,280 dimensions: with 256 it is, on the objects, below the network as it is.

- Shorter embeddings, for a smaller index: --config.model.embedding_dim=256
- Larger networks (extra photos): --config.model.backbone=efficientnet_lite2
- To train the whole network, on a GPU: --config.train.frozen_backbone=False
"""

from tfrank.configs import own_images


def get_config(loss: str = ""):
    config = own_images.get_config(loss)
    config.name = "own_images_fast"
    config.data.image_size = 224
    config.model.backbone = "efficientnet_lite0"
    config.model.head = "whitened"
    config.model.embedding_dim = 1280
    config.train.frozen_until = "last_stage"
    config.train.feature_views = 5
    config.train.schedule = "cosine"
    config.train.start_share = 0.0
    return config
