"""The list of the post-processing steps beside the fields of the config."""

from tfrank.configs.default import get_config
from tfrank.evaluation.postprocessing import steps

DEFAULTS = get_config().evaluation.as_dict()
ON = {
    "mirror": True,
    "scales": (1.0, 0.5),
    "whitening": 0.25,
    "adapt": True,
    "database_augmentation": 3,
    "query_expansion": 5,
    "rerank": True,
}


def test_by_default_no_step_is_on_and_each_is_switched_on_by_its_first_option():
    assert {option for step in steps.STEPS for option in step.options} <= DEFAULTS.keys()
    assert steps.model_steps(DEFAULTS) == steps.ranking_steps(DEFAULTS) == []
    for step in steps.STEPS:
        options = DEFAULTS | {step.options[0]: ON[step.options[0]]}
        assert list(steps.described(options)) == [step.name]
        assert steps.model_steps(options) + steps.ranking_steps(options) == [step]


def test_the_steps_are_applied_in_their_order():
    model, ranking = steps.model_steps(DEFAULTS | ON), steps.ranking_steps(DEFAULTS | ON)
    assert [step.options[0] for step in model + ranking] == list(ON)
    assert steps.without_model_steps(DEFAULTS | ON) == {
        **{"mirror": False, "scales": (1.0,), "whitening": 0.0}
    }
    # Nothing may follow what replaces the similarities.
    assert [bool(step.similarities) for step in ranking] == [False, False, False, True]


def test_scales_of_a_list_are_those_of_a_tuple():
    assert not steps.model_steps({"scales": [1.0]}) and steps.model_steps({"scales": [0.5]})
