"""Set before TensorFlow is first imported: no start-up messages, and compiled programs in few pieces.

A process may map 65,530 pieces of memory, and dies where it would map more. TensorFlow keeps every program
that XLA compiled, and by default each takes a hundred.

PyTorch does not find Triton, which comes with its builds for GPUs. Triton's LLVM beside TensorFlow's ends the
process.
"""

import gc
import os
import sys

import pytest

sys.modules["triton"] = None  # type: ignore[assignment]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_parallel_codegen_split_count=1"


def pytest_sessionfinish():
    """Keeps pytest's last collections of garbage short, since pytest-xdist interrupts a process after 5 s."""
    gc.freeze()


@pytest.fixture(scope="session")
def bad(tmp_path_factory):
    """A folder of bad input of every kind, and of prepared records."""
    from tests.refusals import make_bad_inputs

    folder = tmp_path_factory.mktemp("bad")
    make_bad_inputs(folder)
    return folder


@pytest.fixture(scope="session")
def bad_runs(bad):
    """The same folder with a run and an evaluation, and damaged copies of both."""
    from tests.refusals import make_bad_runs

    make_bad_runs(bad)
    return bad
