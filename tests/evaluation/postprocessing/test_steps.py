"""The list of the post-processing steps beside the fields of the config."""

import pytest

from tfrank.common.checks import InputError
from tfrank.configs.default import get_config
from tfrank.evaluation.postprocessing import steps

DEFAULTS = dict(get_config().evaluation)
ON = {
    "scales": (1.0, 0.5),
    "whitening": 0.25,
    "database_augmentation": 3,
    "query_expansion": 5,
    "rerank": True,
}


def test_by_default_no_step_is_on_and_each_is_switched_on_by_its_first_option():
    assert set(steps.OPTIONS) <= DEFAULTS.keys()
    assert steps.model_steps(DEFAULTS) == steps.ranking_steps(DEFAULTS) == []
    for step in steps.STEPS:
        options = DEFAULTS | {step.options[0]: ON[step.options[0]]}
        assert list(steps.described(options)) == [step.name]
        assert steps.model_steps(options) + steps.ranking_steps(options) == [step]


def test_the_steps_are_applied_in_their_order():
    model, ranking = steps.model_steps(DEFAULTS | ON), steps.ranking_steps(DEFAULTS | ON)
    assert [step.options[0] for step in model + ranking] == list(ON)
    assert steps.without_model_steps(DEFAULTS | ON) == {"scales": (1.0,), "whitening": 0.0}
    # Nothing may follow what replaces the similarities.
    assert [bool(step.similarities) for step in ranking] == [False, False, True]


def test_scales_of_a_list_are_those_of_a_tuple():
    assert not steps.model_steps({"scales": [1.0]}) and steps.model_steps({"scales": [0.5]})


@pytest.mark.parametrize(
    "option, value",
    [
        ("scales", (1.0, 0.0)),
        ("whitening", 0.6),
        ("whitening_dim", -1),
        ("whitening_images", 1),
        ("database_augmentation", -1),
        ("query_expansion", 1.5),
        ("expansion_alpha", -0.1),
    ],
)
def test_an_option_out_of_its_range_is_refused_by_name(option, value):
    steps.check_options(DEFAULTS)
    with pytest.raises(InputError, match=f"`{option}`"):
        steps.check_options(DEFAULTS | {option: value})
