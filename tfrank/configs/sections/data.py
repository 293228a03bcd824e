"""The fields of `config.data`: records, batches, and what the model sees of an image."""

import dataclasses

from tfrank.configs.fields import ByWeights, Section, field
from tfrank.data.images import REGIONS
from tfrank.data.prepare.scan import Features
from tfrank.data.samplers import SHORT_CLASSES
from tfrank.data.sources import SOURCES
from tfrank.data.transforms import CROPS, FITS

# Names of a data set whose images are vectors, and of one whose records were made elsewhere.
EMBEDDINGS, FOREIGN = "embeddings", "tfrecords"
SAMPLERS = ("class_balanced", "all_classes", "category_pairs", "uniform")
# Those that do not draw so many images of each class.
UNGROUPED = ("uniform", "all_classes")


@dataclasses.dataclass(slots=True)
class Data(Section):
    """The fields of `config.data`."""

    name: str = field(
        "digits",
        'Data set, or the form of your own data: "folder", "csv" or "embeddings"; "tfrecords" for records'
        " made elsewhere.",
        choices=(*SOURCES, FOREIGN),
        of_records=True,
    )
    source: str = field(
        "",
        "Path of the data set's folder or archive. Empty for data that comes with a package, or for records"
        " that are prepared already.",
        path=True,
    )
    records: str = field(
        "",
        "Folder of records written by `tfrank prepare` or made elsewhere. Empty for `records` in the"
        " workdir, which the first run writes from the source.",
        path=True,
    )
    test_records: str = field(
        "",
        "Folder of the test records, if they belong to another data set; empty for the same data set.",
        path=True,
    )
    train: tuple[int | str, ...] = field(
        ("train",),
        'Splits of the records to train on: alphabets for "letters" and "omniglot", digits for "digits",'
        ' patterns of shard files, such as "train-*", for "tfrecords". On the command line, repeat the flag'
        " for several values: --config.data.train=Greek --config.data.train=Latin",
        of_records=True,
    )
    test: tuple[int | str, ...] = field(
        ("test",), "Splits to test on, without classes of the splits to train on.", of_records=True
    )
    validation_classes: int = field(
        0,
        "Number of training classes held out to choose the best weights; 0: none. If it is left open, a"
        " fifth of the classes (at least 4) where there are at least 12, else none.",
        at_least=0,
        by_data=True,
    )
    merge_classes: int = field(
        1,
        "Number of training classes, drawn by the seed, that are merged into one, as in PNP's robustness"
        " test; 1 merges none.",
        at_least=1,
    )
    label_noise: float = field(
        0.0,
        "Share of the training images, drawn by the seed, that get the label of another class.",
        at_least=0,
        below=1,
    )
    shards: int = field(
        0,
        "Number of TFRecord shards of a split; 0 for one per 10,000 images, at least 4.",
        at_least=0,
        of_records=True,
    )
    sampler: str = field(
        "class_balanced",
        'Composition of a batch: "class_balanced"; "all_classes", images of every class in each batch'
        ' (mAP_Q); "category_pairs", classes of two categories, half of the batch each (FastAP); or'
        ' "uniform".',
        choices=SAMPLERS,
    )
    classes_per_batch: int = field(
        32,
        'Distinct classes in a batch. Times `examples_per_class` it is the batch size; "all_classes" and'
        ' "uniform" use only that product. If it is left open, both follow from the number of classes.',
        at_least=2,
        by_data=True,
    )
    examples_per_class: int = field(4, "Distinct images of each class in a batch.", at_least=2)
    short_classes: str = field(
        "repeat",
        'Handling of classes with fewer images: "repeat" images within the batch, or "drop" the class.'
        ' For the samplers "class_balanced" and "category_pairs".',
        choices=SHORT_CLASSES,
    )
    region: str = field(
        "image",
        'Region of an image that the model sees: the whole "image"; its "box"; or the "face", aligned by its'
        " five points.",
        choices=REGIONS,
    )
    test_region: str = field(
        "",
        "Region in tests; empty for the same as in training. The queries of ROxford and RParis have boxes,"
        " their gallery has none.",
        choices=("", *REGIONS),
    )
    box_min_aspect: float = field(
        0.0,
        "A box with a lower width / height is widened to this ratio (VGGFace2: 0.875).",
        at_least=0,
    )
    box_margin: float = field(
        0.0,
        "The box is then extended by this share of its width and height, half on each side (VGGFace2: 0.3).",
        at_least=0,
    )
    dim: int = field(
        -1,
        'Only for "embeddings": dimensions of the vectors. If it is left open, those of the records.',
        at_least=1,
        by_data=True,
    )
    image_size: int = field(
        28,
        "Side of the square that the model sees, in pixels.",
        at_least=1,
        by_weights=ByWeights(160, 32),
    )
    resize: int = field(
        0,
        "Images are first warped to a square of this side, in pixels; testing crops its centre. 0:"
        ' `image_size`, which leaves nothing to crop. With crop "scaled" images are not warped and this is'
        ' their shorter side; 0 then leaves their size unchanged in training. With "random_part" it is their'
        " shorter side in tests. -1: `image_size`.",
    )
    crop: str = field(
        "warp",
        'Random crop in training: "warp", a square of `image_size` (PNP, Smooth-AP); "random_resized", a'
        ' part of random area and aspect ratio, resized (RLL); "random_part", one of the image itself,'
        ' not of the warped square, with tests as of "scaled" (Recall@k, Hyp-ViT); or "scaled", a square of'
        " `image_size` of the image in its own proportions, scaled by a random factor and rotated (mAP_Q).",
        choices=CROPS,
    )
    fit: str = field(
        "centre",
        'Only for crop "scaled": "centre", the proportions are kept and tests see the central square;'
        ' "whole", images are squeezed into a square, so that long things such as cars are seen whole;'
        ' "wider", they are squeezed by a third of what "whole" does (an image of 3:2 to 1.31:1, of which'
        " tests see the middle 76 %). If it is left open, the pretrained network tries all three on"
        " training images before the run.",
        choices=tuple(FITS),
        by_data=True,
    )
    crop_area: tuple[float, float] = field(
        (0.5, 1.0),
        'Only for "random_resized" and "random_part": range of the area, as a share of the whole.',
        above=0,
        at_most=1,
    )
    crop_ratio: tuple[float, float] = field(
        (0.75, 4 / 3), 'Only for "random_resized" and "random_part": range of width / height.', above=0
    )
    scale: tuple[float, float] = field(
        (1.0, 1.0), 'Only for "scaled", an error with other crops: range of the scale factor.', above=0
    )
    rotation: float = field(
        0.0,
        'Only for "scaled", an error with other crops: the largest rotation in degrees, in either direction.',
        at_least=0,
        at_most=180,
    )
    flip: float = field(0.0, "Probability that an image is mirrored, left for right.", at_least=0, at_most=1)
    # On Caltech-101 from random weights, Recall@1 is 0.544 with colour jitter and 0.518 without.
    color_jitter: tuple[float, ...] = field(
        (0.0, 0.0, 0.0, 0.0),
        "Largest changes of brightness, contrast, saturation (as shares of themselves) and hue (as a share"
        " of the circle, at most 0.5); 0 for none.",
        at_least=0,
        by_weights=ByWeights((0.0, 0.0, 0.0, 0.0), (0.3, 0.3, 0.3, 0.02)),
    )
    max_shift: int = field(
        0,
        "Largest random shift of each batch, in pixels in each direction; pixels wrap around. 0 for none.",
        at_least=0,
    )
    features: Features = field(
        Features, "Names of the features in records made elsewhere. Only `encoded` and `label` are required."
    )

    @property
    def batch_size(self) -> int:
        """The number of images in a global batch; 0 while it is left open."""
        return max(0, self.classes_per_batch) * self.examples_per_class

    @property
    def of_vectors(self) -> bool:
        """Whether the images are vectors that another model has computed."""
        return self.name == EMBEDDINGS
