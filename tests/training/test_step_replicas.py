"""Two replicas take the steps of one device, at once and in stages; the runs stand in `step_replicas.py`."""

import numpy as np
import pytest

from tests.programs import printed_json
from tests.training import step_replicas

pytestmark = pytest.mark.slow

# Of the norm of the update. Mixed precision rounds each micro-batch's part of it to 8 bits, or 11.
TOLERANCES = dict.fromkeys(step_replicas.RUNS, 1e-9) | {
    "unclipped": 1e-5,
    "mixed_bfloat16": 2e-2,
    "mixed_float16": 2e-3,
}
COMPARED = [name for name in step_replicas.ON_TWO_REPLICAS if name.split(",")[0] in step_replicas.RUNS]
OVERFLOWS = [name for name in step_replicas.ON_TWO_REPLICAS if name.startswith("overflow on")]


@pytest.fixture(scope="module")
def results():
    """What all runs gave, by one program with the one strategy a process may hold."""
    return printed_json("-m", "tests.training.step_replicas")


def of_both(results, name):
    one, two = results["one device"][name.split(",")[0]], results["two replicas"][name]
    assert "error" not in one and "error" not in two, (one.get("error"), two.get("error"))
    return one, two


@pytest.mark.parametrize("name", COMPARED)
def test_two_replicas_take_the_plain_step_of_one_device(results, name):
    one, two = of_both(results, name)
    tolerance = TOLERANCES[name.split(",")[0]]
    update = np.array(one["update"])
    assert np.linalg.norm(update - two["update"]) < tolerance * np.linalg.norm(update)
    assert one["loss"] == pytest.approx(two["loss"], rel=max(tolerance / 10, 1e-6 if tolerance > 1e-9 else 0))
    # Nothing agrees with nothing.
    assert np.linalg.norm(update) > 1e-3


@pytest.mark.parametrize("name", [name for name in COMPARED if not name.startswith(("fit", "dropout"))])
def test_embeddings_are_those_before_the_update_in_the_order_of_the_batch(results, name):
    one, two = of_both(results, name)
    tolerance = 1e-2 if "mixed" in name else 1e-6
    np.testing.assert_allclose(two["embeddings"], two["untrained"], atol=tolerance)
    np.testing.assert_allclose(one["embeddings"], one["untrained"], atol=tolerance)


def test_a_gradient_is_clipped_to_the_norm_as_one(results):
    one, _ = of_both(results, "clipped")
    unclipped, _ = of_both(results, "unclipped")
    # The rate is 0.5.
    assert np.linalg.norm(one["update"]) == pytest.approx(0.5 * step_replicas.CLIP_NORM, rel=1e-5)
    assert np.linalg.norm(unclipped["update"]) > step_replicas.CLIP_NORM


@pytest.mark.parametrize("name", OVERFLOWS)
def test_a_gradient_that_overflows_on_one_replica_stops_the_update_on_both(results, name):
    """1e30 x 2^30 and 1e30 x 2^29 are above float32's largest number, 1e30 x 2^28 is not."""
    two = results["two replicas"][name]
    assert two["scales"] == [2**29, 2**28, 2**28, 2**28, 2**28]
    assert two["weights"] == pytest.approx([0, 0, -1, -2, -3])


@pytest.mark.parametrize("name", ["overflow, clipped", "overflow, clipped, in stages"])
def test_clipping_makes_no_nan_of_an_overflow(results, name):
    two = results["two replicas"][name]
    assert two["scales"] == [2**29, 2**28, 2**-60, 2**-60, 2**-60]
    assert two["weights"] == pytest.approx([0, 0, -0.5, -1, -1.5])


def test_fit_in_stages_on_replicas_logs_what_fit_of_the_model_inside_logs(results):
    one, two = of_both(results, "fit, in stages")
    for name in ("loss", "recall_at_1", "positive_similarity"):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-9, err_msg=name)


def test_weights_are_averaged_on_every_replica_as_on_one_device(results):
    one, two = of_both(results, "average")
    [wanted] = one["averages"]
    for averages in two["averages"]:
        np.testing.assert_allclose(averages, wanted, rtol=1e-9, atol=1e-12)


def test_every_replica_summarises_the_batch_of_all(results):
    one, two = of_both(results, "summary")
    for name, [wanted] in one.items():
        np.testing.assert_allclose(two[name], [wanted, wanted], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "name, message",
    [
        ("xla", "xla works on one device only"),
        ("shared batch norm, in stages", "micro_batch_size on several devices needs batch norm to be frozen"),
        ("shared batch norm in fit", "micro_batch_size on several devices needs batch norm to be frozen"),
    ],
)
def test_what_replicas_cannot_do_is_refused(results, name, message):
    assert results["two replicas"][name].startswith(message)


def test_fit_in_stages_survives_an_overflow_on_the_second_replica(results):
    run = results["two replicas"]["overflow in fit"]
    assert run == {"weight": pytest.approx(-3), "scale": 2.0**28}
