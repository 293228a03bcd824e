"""Set before TensorFlow is first imported: no start-up messages, and compiled programs in few pieces.

A process may map 65,530 pieces of memory, and dies where it would map more. TensorFlow keeps every program
that XLA compiled, and by default each takes a hundred.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_parallel_codegen_split_count=1"
