"""Your own photos, the quick way: trains a head on a pretrained network that pip has installed.

    python train_main.py --config=configs/own_images_fast.py --config.data.source=photos

`photos` is as in `tfrank.configs.own_images`. The network is EfficientNet-Lite0, whose ImageNet weights come
with tfrank, at 224 x 224 pixels; it needs no network connection. All but its last stage stays as it is: its
feature maps of five views of each photo are computed once and stored, and the last stage is trained on them.
The head whitens features within classes, in closed form. On the photos of the benchmark this gives more, in
about the time, than training the whole of MobileNetV2 at 160 pixels, as `own_images` does.

- Shorter embeddings, for a smaller index: --config.model.embedding_dim=256
- A larger network (extra photos), in about twice the time: --config.model.backbone=efficientnet_lite2
- The head in closed form and nothing else: --config.train.frozen_until= --config.train.frozen_backbone=True
  --config.train.steps=1
- To train the whole network, on a GPU: --config.train.frozen_until= --config.train.learning_rate=3e-5
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
    # The first steps at the full rate cost some of what the later ones more than regain.
    config.train.patience = 0
    return config
