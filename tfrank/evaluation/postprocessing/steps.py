"""The list of the post-processing steps: their options, order, and words for the report.

A new step needs a file in this folder, an entry in `STEPS`, and its options as fields of the config
in `tfrank/configs/sections/evaluation.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfrank.common.checks import InputError
from tfrank.evaluation.postprocessing.neighbor_whitening import learn_neighbor_whitening
from tfrank.evaluation.postprocessing.query_expansion import augment_database, expand_queries
from tfrank.evaluation.postprocessing.reranking import k_reciprocal_blocks
from tfrank.evaluation.postprocessing.whitening import whiten

# Values by option name. A missing option switches its step off.
Options = Mapping[str, Any]


class Step(NamedTuple):
    """A step between the model and the ranking.

    A step without `move` and `similarities` changes how images are embedded. Who has the model applies it.

    Attributes:
        name: the name in reports.
        options: the names of its options; the first one switches the step on.
        off: the value of the first option that switches the step off.
        describe: returns the values of the options as text for reports.
        move: maps `[queries, dim]` and `[gallery, dim]` float32 unit rows, `[queries]` the query's own
            gallery row or -1, and the options to new queries and gallery. If the queries are the gallery,
            both are one array.
        similarities: maps the same to (first query, `[block, gallery]` similarities), which replace the
            cosines. Only the last step may have it.
        check_queries: raises InputError if the step cannot be applied to queries with these own gallery rows.
    """

    name: str
    options: tuple[str, ...]
    off: Any
    describe: Callable[[Options], str]
    move: Callable | None = None
    similarities: Callable | None = None
    check_queries: Callable[[np.ndarray, Options], None] | None = None

    def is_on(self, options: Options) -> bool:
        """Whether the options switch the step on."""
        value = options.get(self.options[0], self.off)
        return (tuple(value) if isinstance(value, list) else value) != self.off


def _describe_scales(options):
    return ", ".join(f"{scale:g}" for scale in options["scales"])


def _describe_whitening(options):
    dim = options["whitening_dim"]
    return f"power {options['whitening']:g}" + (f", to {dim} dimensions" if dim else "")


def _describe_neighbors(name):
    return lambda options: f"{options[name]} nearest, weighted by s^{options['expansion_alpha']:g}"


def _adapt(queries, gallery, self_index, options):
    whitening = learn_neighbor_whitening(gallery)
    adapted = whiten(gallery, whitening)
    return adapted if queries is gallery else whiten(queries, whitening), adapted


def _augment(queries, gallery, self_index, options):
    augmented = augment_database(
        gallery, k=options["database_augmentation"], alpha=options["expansion_alpha"]
    )
    return augmented if queries is gallery else queries, augmented


def _expand(queries, gallery, self_index, options):
    k, alpha = options["query_expansion"], options["expansion_alpha"]
    return expand_queries(queries, gallery, k=k, alpha=alpha, self_index=self_index), gallery


def _rerank(queries, gallery, self_index, options):
    return k_reciprocal_blocks(queries, gallery, self_index=self_index)


def _check_unexpanded(self_index, options):
    if options.get("query_expansion") and np.any(self_index >= 0):
        raise InputError(
            "Re-ranking takes a query that is in the gallery from there, where it is not expanded. Use"
            " database augmentation in place of query expansion, or one of the two."
        )


# In the order in which they are applied.
STEPS = (
    Step("mirror", ("mirror",), False, lambda options: "each image with its mirror image"),
    Step("scales", ("scales",), (1.0,), _describe_scales),
    Step(
        "whitening",
        ("whitening", "whitening_dim", "whitening_images"),
        0.0,
        _describe_whitening,
    ),
    Step("adaptation", ("adapt",), False, lambda options: "to the gallery", move=_adapt),
    Step(
        "database augmentation",
        ("database_augmentation", "expansion_alpha"),
        0,
        _describe_neighbors("database_augmentation"),
        move=_augment,
    ),
    Step(
        "query expansion",
        ("query_expansion", "expansion_alpha"),
        0,
        _describe_neighbors("query_expansion"),
        move=_expand,
    ),
    Step(
        "re-ranking",
        ("rerank",),
        False,
        lambda options: "k-reciprocal",
        similarities=_rerank,
        check_queries=_check_unexpanded,
    ),
)


def model_steps(options: Options) -> list[Step]:
    """The steps that are on and change how images are embedded.

    >>> [step.name for step in model_steps({"whitening": 0.5, "rerank": True})]
    ['whitening']
    """
    return [step for step in STEPS if step.is_on(options) and not (step.move or step.similarities)]


def ranking_steps(options: Options) -> list[Step]:
    """The steps that are on and change the ranking of given embeddings.

    >>> [step.name for step in ranking_steps({"whitening": 0.5, "rerank": True})]
    ['re-ranking']
    """
    return [step for step in STEPS if step.is_on(options) and (step.move or step.similarities)]


def without_model_steps(options: Options) -> dict[str, Any]:
    """The options that switch `model_steps` off.

    >>> without_model_steps({"whitening": 0.5, "whitening_dim": 64, "rerank": True})
    {'whitening': 0.0}
    """
    return {step.options[0]: step.off for step in model_steps(options)}


def described(options: Options) -> dict[str, str]:
    """The steps that are on, by name, with the values of their options as text.

    >>> described({"query_expansion": 10, "expansion_alpha": 2.0, "rerank": False})
    {'query expansion': '10 nearest, weighted by s^2'}
    """
    return {step.name: step.describe(options) for step in STEPS if step.is_on(options)}
