"""The fields of `config.evaluation`, which any evaluation of a run may change."""

import dataclasses
import functools

from ml_collections import ConfigDict

from tfrank.configs import fields
from tfrank.configs.fields import Section
from tfrank.evaluation.protocols import PROTOCOLS

field = functools.partial(fields.field, may_change=True)


@dataclasses.dataclass(slots=True)
class Evaluation(Section):
    """The fields of `config.evaluation`."""

    batch_size: int = field(
        0,
        "Images embedded at once. 0: 256; on a CPU at most as many as have a million pixels together, which"
        " is quicker and takes less memory.",
        at_least=0,
    )
    recall_at: tuple[int, ...] = field(
        (),
        "The Ks of Recall@K and precision@K, each at most the number of images that a query is ranked"
        " against. (): 1, 10 and 100, as far as possible.",
        at_least=1,
    )
    protocols: tuple[str, ...] = field(
        (),
        "Evaluation protocols, see `tfrank.evaluation.protocols`. (): the usual one of the test set.",
        choices=tuple(PROTOCOLS),
    )
    mirror: bool = field(
        False,
        "Embed an image as the mean of it and of its mirror image, each of unit norm. Twice the time.",
    )
    image_size: int = field(
        0,
        "Side of the square that the model sees in tests and after export, in pixels; 0: `data.image_size`;"
        " -1: 8/7 of that, rounded to a multiple of 32 (256 for 224). A larger one often finds more, as"
        " training enlarges parts of images (arXiv 1906.06423). Not for networks of one size.",
        at_least=-1,
    )
    full_size: bool = field(
        False, "Embed images at their own size, one at a time, neither resized nor cropped (mAP_Q)."
    )
    target_recall: float = field(
        0.99,
        "Share of the true neighbours that ScaNN is tuned to find, if it is used.",
        above=0,
        at_most=1,
    )
    match_precision: float = field(
        0.95,
        "From which similarity on a search calls an image a match, learnt on the validation classes: where"
        " this share of a query's results is of its class.",
        above=0,
        at_most=1,
    )
    match_far: float = field(
        0.0,
        "If it is above 0, an image is a match where at most this share of the pairs of different classes is"
        " accepted, in place of `match_precision`.",
        at_least=0,
        below=1,
    )
    scales: tuple[float, ...] = field(
        (1.0,),
        "Scales at which an image is embedded; the embeddings are summed. Other scales than 1 need a model"
        " that takes images of any size.",
        above=0,
    )
    whitening: float = field(
        0.0,
        "Power of PCA whitening: 0.25 in mAP_Q, 0.5 for full whitening, 0 for none.",
        at_least=0,
        at_most=0.5,
    )
    whitening_dim: int = field(0, "Dimensions of the whitened embedding; 0 for all.", at_least=0)
    whitening_images: int = field(
        20000, "Largest number of training images to learn whitening and PCA on.", at_least=2
    )
    adapt: bool = field(
        False,
        "Adapt the embeddings to the gallery, without its labels, as an index does: what differs between"
        " neighbours counts for less.",
    )
    query_expansion: int = field(
        0, "Number of neighbours averaged into each query; 0 for none, 10 in mAP_Q.", at_least=0
    )
    database_augmentation: int = field(
        0, "Number of neighbours averaged into each gallery embedding; 0 for none, 10 in mAP_Q.", at_least=0
    )
    expansion_alpha: float = field(
        2.0,
        "A neighbour's weight in both is its similarity to this power: 2 in mAP_Q, 0 for the plain mean.",
        at_least=0,
    )
    rerank: bool = field(False, "Re-rank by k-reciprocal neighbours.")
    cutoffs: bool = field(False, "Also measure mAP, nDCG and MRR of the K nearest for each K.")
    hierarchical: bool = field(
        False, "Also measure Hierarchical AP, graded nDCG and ASI, for records with categories."
    )
    dims: tuple[int, ...] = field(
        (),
        "Also measure the first so many dimensions of the embeddings, and PCA to as many, learnt on at most"
        " `whitening_images` training images. (): those of `train.matryoshka`. Not with whitening, which"
        " orders them itself. On the command line: --config.evaluation.dims=128,64,32",
        at_least=1,
    )
    beside: tuple[str, ...] = field(
        (),
        "Folders of evaluations of other models on the same test set, whose Recall@1 and mAP the report shows"
        " beside those of this one, such as models trained at `dims`.",
    )
    nmi: bool = field(
        False, "Also measure normalised and adjusted mutual information of k-means clusters and classes."
    )
    verification: bool = field(False, "Also measure ROC-AUC and TAR at FAR of image pairs.")
    open_set: bool = field(
        False,
        "Also measure classification by nearest images where half of the classes are unknown: accuracy,"
        " unknown images that are recognised, AUROC and OSCR.",
    )
    baselines: bool = field(
        False, "Also evaluate raw pixels and the model before training; for small images and test sets."
    )
    published: ConfigDict = field(  # noqa: RUF009
        ConfigDict,
        "Published results to show in the report: {name: {metric: share}}; names contain no dot.",
    )

    def at_training_size(self) -> "Evaluation":
        """Returns the same fields for images of the size that the model is trained on."""
        return dataclasses.replace(self, image_size=0, full_size=False)

    @property
    def any_size(self) -> bool:
        """Whether the evaluated model must take images of any size."""
        return self.full_size or self.scales != (1.0,)
