"""Your own photos: a start that a laptop without a GPU can take.

    python train_main.py --config=configs/own_images.py --config.data.source=photos

`photos` has one folder of images a class: half of the classes, drawn at random, are tested on, so as to
measure on things never seen. Or it has folders `train` and `test` with the classes inside, none in both. A
CSV file with the columns path, label and split will do too: --config.data.name=csv
--config.data.source=photos.csv.

A small network learns from nothing, on 64 x 64 pixels: some minutes, no other file needed. It is there to
see that the data is as you think, and what raw pixels achieve on it (of tens of thousands of photos that
takes much memory: --config.evaluation.baselines=False). Where photos that are mirrored mean something else
(text, left and right hands), --config.data.flip=0.

A batch takes 4 classes and 8 images of each, of a smaller class some twice. That needs 4 classes to train
on, 8 in all where half are tested on. From 4 in all: --config.data.classes_per_batch=2. With dozens:
--config.data.classes_per_batch=16 --config.data.examples_per_class=4.

Better embeddings begin with a network that has seen ImageNet, on a GPU: `configs/own_records.py`, or

    python train_main.py --config=configs/own_images.py --config.data.source=photos \
        --config.model.backbone=resnet50 --config.model.weights=resnet50-0676ba61.pth \
        --config.data.image_size=224 --config.data.resize=256 --config.data.crop=warp \
        --config.data.classes_per_batch=28 --config.data.examples_per_class=4 \
        --config.train.learning_rate=1e-5 --config.train.steps=5000

which are PNP's settings; `configs/papers.py` says where the file is from. Nothing is published on your
photos. Hold out some training classes to choose the best checkpoint by:
--config.data.validation_classes=10.
"""

from configs import default


def get_config(loss: str = ""):
    config = default.get_config(loss)
    config.name = "own_images"
    config.data.name = "folder"
    config.data.resize = 72
    config.data.image_size = 64
    config.data.crop = "random_resized"
    config.data.flip = 0.5
    config.data.classes_per_batch = 4
    config.data.examples_per_class = 8
    config.model.pooling = "average"
    config.model.embedding_dim = 128
    config.train.steps = 1000
    config.train.l2 = 4e-4
    config.evaluation.baselines = True
    return config
