"""Building blocks of the losses: blockwise scoring, soft ranks, pair masks, and the base class."""
