"""Benchmarks: each prints ratios against a peer or a limit that was measured in the same run.

PyTorch does not find Triton, which comes with its builds for GPUs. Triton's LLVM beside TensorFlow's ends the
process.
"""

import sys

sys.modules["triton"] = None  # type: ignore[assignment]
