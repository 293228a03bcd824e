"""Naive twins of the losses' cores: whole matrices of plain TensorFlow operations, no gradient written.

Each takes `(query_labels, queries, gallery_labels, gallery, self_index)`, of unit rows unless its loss
takes them as they are, and the settings of its loss, and gives what `RankingLoss.score` gives: (loss per
query, which queries are valid).
"""

from tests.losses.twins import pairs, ranking, tuples
from tests.losses.twins.common import gradient_of_mean, mean_penalty, sigmoid_step
from tests.reference.ranking import blackbox_ap_slopes

TWINS = {
    "pnp": ranking.pnp,
    "smooth_ap": ranking.smooth_ap,
    "map_q": ranking.map_q,
    "fast_ap": ranking.fast_ap,
    "rll": ranking.rll,
    "blackbox_ap": ranking.blackbox_ap,
    "recall_at_k": ranking.recall_at_k,
    "sup_ap": ranking.sup_ap,
    "triplet": tuples.triplet,
    "contrastive": tuples.contrastive,
    "n_pairs": tuples.n_pairs,
    "lifted_structure": tuples.lifted_structure,
    "multi_similarity": pairs.multi_similarity,
    "circle": pairs.circle,
    "margin": pairs.margin,
    "histogram": pairs.histogram,
}

# Of losses whose gradient is not the slope of their value: dL_q/ds `[queries, gallery]`, in plain loops.
DEFINED_SLOPES = {
    "blackbox_ap": blackbox_ap_slopes,
    "rll": ranking.rll_slopes,
    "circle": pairs.circle_slopes,
    "margin": pairs.margin_slopes,
}

__all__ = ["DEFINED_SLOPES", "TWINS", "gradient_of_mean", "mean_penalty", "sigmoid_step"]
