"""What losses are made of: scores of blocks, soft ranks, pairs, and the base class."""
