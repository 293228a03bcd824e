"""Your own photos: trains the last stages of a pretrained network that pip has installed, on a laptop.

    python train_main.py --config=configs/own_images.py --config.data.source=photos

`photos` has one folder of images per class. Half of the classes, drawn at random, become the test set, so
that the test is on unseen classes. Alternatively it has folders `train` and `test` with the classes inside
and no class in both. A CSV file with the columns path and label works too: --config.data.name=csv
--config.data.source=photos.csv.

The network is EfficientNet-Lite0, whose ImageNet weights come with tfrank; it needs no network connection. It
is trained on images of 224 x 224 pixels and then sees 256 x 256. What comes before its last two stages stays
as it is: its maps of some views of each photo are computed once and stored. The stages are trained on them.
The head whitens features within classes, in closed form. A fifth of the training classes is held out to
choose the best weights, which may be the initial ones. Views, batch shape and steps follow from the number of
classes and images, and are printed with the reason. All is done within ten minutes: where the machine is too
slow for that, views and steps are fewer.

- In less time, with more than half of the gain: --config=configs/own_images_fast.py
- Shorter embeddings, for a smaller index: --config.model.embedding_dim=256
- Larger images: --config.data.image_size=320, of which it then sees 352 x 352
- More time than ten minutes, on a slow machine: --config.train.minutes=30
- A larger network (extra photos), in about twice the time: --config.model.backbone=efficientnet_lite2
- If mirroring changes the meaning of a photo (text, left and right hands): --config.data.flip=0
- The whole network, other networks, or random weights: --config=configs/own_images_whole.py
"""

from tfrank.configs import own_images_whole


def get_config(loss: str = ""):
    config = own_images_whole.get_config(loss)
    config.name = "own_images"
    config.data.image_size = 224
    config.model.backbone = "efficientnet_lite0"
    config.model.head = "whitened"
    config.model.embedding_dim = 1280
    config.train.frozen_until = "last_two_stages"
    config.train.feature_views = -1
    config.train.schedule = "cosine"
    config.train.start_share = 0.0
    # The first steps at the full rate cost some of what the later ones more than regain.
    config.train.patience = 0
    config.train.minutes = 10
    # Training enlarges parts of photos by 1.2 on average.
    config.evaluation.image_size = -1
    return config
