"""What the papers say, as plain loops in float64: slow, readable, and nothing shared with tfrank.

Losses score queries against a gallery; `self_index[q]` is the query's own gallery row, or -1.
"""

from tests.reference import pairs, ranking, tuples
from tests.reference.common import by_query, candidates, each_query, mean, one_batch, sigmoid, soft_rank, unit
from tests.reference.metrics import average_precision, recall_at_k, relevance
from tests.reference.postprocess import expanded, k_reciprocal, multi_scale, whitened
from tests.reference.protocols import averaged_groups, graded, ranking_of, template_embedding
from tests.reference.ranking import class_weights
from tests.reference.targets import regression, relational

LOSSES = {
    "pnp": ranking.pnp,
    "smooth_ap": ranking.smooth_ap,
    "map_q": ranking.map_q,
    "fast_ap": ranking.fast_ap,
    "rll": ranking.rll,
    "blackbox_ap": ranking.blackbox_ap,
    "recall_at_k": ranking.recall_at_k_loss,
    "sup_ap": ranking.sup_ap,
    "hierarchical_ap": ranking.hierarchical_ap,
    "triplet": tuples.triplet,
    "contrastive": tuples.contrastive,
    "n_pairs": tuples.n_pairs,
    "lifted_structure": tuples.lifted_structure,
    "multi_similarity": pairs.multi_similarity,
    "circle": pairs.circle,
    "sup_con": pairs.sup_con,
    "tcm": pairs.tcm,
    "margin": pairs.margin,
    "histogram": pairs.histogram,
}

# Losses whose gradient is not the slope of their value: dL_q/ds `[queries, gallery]`.
DEFINED_SLOPES = {
    "blackbox_ap": ranking.blackbox_ap_slopes,
    "rll": ranking.rll_slopes,
    "circle": pairs.circle_slopes,
    "margin": pairs.margin_slopes,
}

__all__ = [
    "DEFINED_SLOPES",
    "LOSSES",
    "average_precision",
    "averaged_groups",
    "by_query",
    "candidates",
    "class_weights",
    "each_query",
    "expanded",
    "graded",
    "k_reciprocal",
    "mean",
    "multi_scale",
    "one_batch",
    "ranking_of",
    "recall_at_k",
    "regression",
    "relational",
    "relevance",
    "sigmoid",
    "soft_rank",
    "template_embedding",
    "unit",
    "whitened",
]
