"""The metrics as a reader sees them: title, definition, unit, and which direction is better.

Every metric that a table shows has an entry in `METRICS`, under the name that it has in `metrics.json`.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Metric(NamedTuple):
    """How a metric is shown.

    Attributes:
        title: the name as papers write it; in a family such as `recall_at_<k>` the part before the K.
        definition: one sentence; it begins with the defined term and a colon. "" if the title says enough.
        unit: "share" (0 to 1, shown in percent), "distance" (0 to 2), "variance"
            (0 to 0.25), "rank" (from 1) or "count".
        better: 1 if higher is better, -1 if lower is better, 0 if neither.
    """

    title: str
    definition: str = ""
    unit: str = "share"
    better: int = 1


# Suffix of the name of a mean over classes; those of the ends of an interval; and their entries in `METRICS`.
BY_CLASS, LOW, HIGH = "_by_class", "_low", "_high"
SUFFIXES = {BY_CLASS: "by_class", LOW: "low", HIGH: "high"}
# Metrics by name. `recall_at_<k>` is the family of recall_at_1, recall_at_10 and so on.
METRICS = {
    "recall_at_<k>": Metric(
        "Recall@",
        "Recall@K (hit rate): share of queries with at least one image of their class among the K nearest,"
        " the query itself left out.",
    ),
    "precision_at_<k>": Metric(
        "Precision@", "Precision@K: share of the K nearest images that are of the query's class."
    ),
    "map": Metric(
        "mAP",
        "mAP: mean over queries of AP, the mean of the precisions at the ranks of all images of the query's"
        " class.",
    ),
    # Of a single query, as in `retrieval_metrics.MEANS`.
    "ap": Metric("AP"),
    "trapezoid_ap": Metric("AP"),
    "hierarchical_ap": Metric("H-AP"),
    "map_at_r": Metric(
        "MAP@R",
        "MAP@R: like mAP, but only the R nearest images count as found, where R is the number of images of"
        " the query's class.",
    ),
    "map_at_<k>": Metric(
        "mAP@",
        "mAP@K: like mAP, but only the K nearest images count as found; the sum of precisions is divided by K"
        " or, if there are fewer, by the number of images of the query's class.",
    ),
    "hierarchical_map": Metric(
        "H-AP",
        "H-AP: Hierarchical AP, like mAP with graded relevance: the images of the query's class together"
        " count twice as much as all others of its category.",
    ),
    "graded_ndcg": Metric(
        "Graded nDCG",
        "Graded nDCG: nDCG with graded relevance: an image that shares l levels with the query, its class and"
        " its categories, has the gain 2^l - 1.",
    ),
    "asi": Metric(
        "ASI",
        "ASI: average set intersection: the share of the n nearest images that are of the same levels as the"
        " n first of the best ranking, averaged over n up to the number of images of the query's category.",
    ),
    "r_precision": Metric(
        "R-precision",
        "R-precision: share of the R nearest images that are of the query's class, where R is the number of"
        " images of its class.",
    ),
    "mrr": Metric("MRR", "MRR: mean over queries of 1 / rank of the nearest image of the query's class."),
    "mrr_at_<k>": Metric("MRR@", "MRR@K: like MRR, but 0 for a query whose K nearest images are all wrong."),
    "ndcg": Metric(
        "nDCG",
        "nDCG: sum of 1 / log2(1 + rank) over the images of the query's class, divided by that of the best"
        " ranking.",
    ),
    "ndcg_at_<k>": Metric("nDCG@", "nDCG@K: nDCG of the K nearest images."),
    "trapezoid_map": Metric(
        "mAP",
        "mAP of the revisited Oxford and Paris protocol: the area under each query's precision-recall curve,"
        " by trapezoids.",
    ),
    "capped_precision_at_<k>": Metric(
        "mP@",
        "mP@K of the revisited Oxford and Paris protocol: precision among the K nearest images, or down to"
        " the last positive if that comes first.",
    ),
    "scann_recall": Metric("ScaNN's recall"),
    "by_class": Metric(
        "by class",
        "By class: mean over classes of the mean of each class's queries. Each class counts the same, however"
        " many queries it has; in a mean over queries large classes count more.",
    ),
    "dists_intra": Metric(
        "dists@intra",
        "dists@intra: mean cosine distance (1 - similarity) between two images of a class, averaged over the"
        " classes with at least two images: each counts once, however many pairs it has.",
        unit="distance",
        better=0,
    ),
    "dists_inter": Metric(
        "dists@inter",
        "dists@inter: mean cosine distance between the mean directions of two classes.",
        unit="distance",
        better=0,
    ),
    "nmi": Metric(
        "NMI",
        "NMI: normalised mutual information between classes and the clusters of k-means with as many clusters"
        " as there are classes.",
    ),
    "ami": Metric(
        "AMI",
        "AMI: the same mutual information, adjusted for chance: 0 for random clusters on average, 1 for the"
        " classes.",
    ),
    "roc_auc": Metric(
        "ROC AUC",
        "ROC AUC: probability that a pair of images of one class is more similar than a pair of two classes;"
        " equal similarities count half.",
    ),
    "tar_at_far_<far>": Metric(
        "TAR@FAR ",
        "TAR@FAR x: true accept rate at a false accept rate: the share of the pairs of one class that are"
        " accepted if at most a share x of the pairs of two classes is. A pair as similar as a pair that must"
        " be refused is refused.",
    ),
    "opis": Metric(
        "OPIS",
        "OPIS: operating-point inconsistency: variance between classes of how well one threshold suits them,"
        " averaged over thresholds of FAR 0.01 to 0.1; 0 if all classes fare alike. It suits a class by the"
        " harmonic mean of two shares: its own pairs that are accepted, and its pairs with others that are"
        " refused.",
        unit="variance",
        better=-1,
    ),
    "open_set_accuracy": Metric(
        "Open-set accuracy",
        "Open-set accuracy: half of the classes are unknown, and half of the images of each other class are"
        " the gallery: share of the others of these classes that the votes of the 10 nearest images of the"
        " gallery give their class.",
    ),
    "open_set_auroc": Metric(
        "Open-set AUROC",
        "Open-set AUROC: probability that the score of an image of a known class is above that of an image of"
        " an unknown class; equal scores count half.",
    ),
    "open_set_oscr": Metric(
        "OSCR",
        "OSCR: area under the curve of the share of images of known classes that get their class, against the"
        " share of images of unknown classes that get any, over all thresholds of the score.",
    ),
    "open_set_known": Metric(
        "Known at the threshold",
        "Known at the threshold: share of the images of known classes that get their class, where the gallery"
        " promises that at most 5 % of the images of unknown classes get any.",
    ),
    "open_set_unknown": Metric(
        "Unknown at the threshold",
        "Unknown at the threshold: share of the images of unknown classes that get no class there.",
    ),
    "low": Metric(
        "(from)",
        "(from), (to): ends of the 95 % interval of a metric, over other classes that are drawn likewise.",
        better=0,
    ),
    "high": Metric("(to)", better=0),
    "queries": Metric("Queries", unit="count", better=0),
    "open_set_known_queries": Metric("Queries of known classes", unit="count", better=0),
    "open_set_unknown_queries": Metric("Queries of unknown classes", unit="count", better=0),
    "queries_without_positive": Metric("Queries without a positive", unit="count", better=0),
    "templates": Metric("Templates", unit="count", better=0),
    "positive_pairs": Metric("Positive pairs", unit="count", better=0),
    "negative_pairs": Metric("Negative pairs", unit="count", better=0),
    "all_positive_pairs": Metric("All positive pairs", unit="count", better=0),
    "all_negative_pairs": Metric("All negative pairs", unit="count", better=0),
}
COUNTS = tuple(name for name, metric in METRICS.items() if metric.unit == "count")
# The families by the text before their parameter; and the title of a parameter without a value.
FAMILIES = {name[: name.index("<")]: name for name in METRICS if "<" in name}
PARAMETERS = {"<k>": "K", "<far>": "x"}


def family_of(name: str) -> str:
    """The key of a metric in `METRICS`; the name itself if it has none.

    >>> family_of("recall_at_10"), family_of("map"), family_of("map_by_class")
    ('recall_at_<k>', 'map', 'by_class')
    """
    if suffix := _suffix(name):
        return SUFFIXES[suffix]
    if name in METRICS:
        return name
    return next((family for prefix, family in FAMILIES.items() if name.startswith(prefix)), name)


def metric_of(name: str) -> Metric:
    """How the metric of that name is shown. A name without an entry is a share, with the name as its title.

    >>> metric_of("dists_intra").unit, metric_of("new_one").title
    ('distance', 'New one')
    """
    return METRICS.get(family_of(name)) or Metric(name.replace("_", " ").capitalize())


def metric_title(name: str) -> str:
    """A metric's name as papers write it.

    >>> metric_title("recall_at_10"), metric_title("recall_at_<k>"), metric_title("map_by_class")
    ('Recall@10', 'Recall@K', 'mAP by class')
    """
    if suffix := _suffix(name):
        return f"{metric_title(name.removesuffix(suffix))} {METRICS[SUFFIXES[suffix]].title}"
    family = family_of(name)
    parameter = name.removeprefix(family[: family.index("<")]) if "<" in family else ""
    return metric_of(name).title + PARAMETERS.get(parameter, parameter)


def _suffix(name):
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def definitions_of(names: Iterable[str]) -> list[str]:
    """The definitions of the metrics with these names, each once.

    >>> definitions_of(["dists_inter", "queries"])
    ['dists@inter: mean cosine distance between the mean directions of two classes.']
    """
    families = dict.fromkeys(map(family_of, names))
    return [
        METRICS[family].definition for family in families if family in METRICS and METRICS[family].definition
    ]
