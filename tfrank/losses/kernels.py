"""What a loss of your own is made of, besides `tfrank.RankingLoss`.

A kernel maps a `Block`, rows of similarities, to the loss of each query and its slope by each similarity.
`score_rows` runs it, with its gradient; `sigmoid_kernel` is the kernel of a penalty of soft ranks. Here, the
reciprocal rank, without the other positives:

>>> import tfrank
>>> from tfrank.losses.kernels import score_rows, sigmoid_kernel
>>> def kernel(block, temperature):
...     return sigmoid_kernel(lambda before: before / (1 + before), temperature, positives=False)(block)
>>> def reciprocal_rank_loss(*rows, temperature):
...     return score_rows(kernel, *rows, temperature)
>>> class ReciprocalRankLoss(tfrank.RankingLoss):
...     def __init__(self, temperature=0.1, *, reduction="mean", name="reciprocal_rank"):
...         arguments = {"temperature": temperature}
...         super().__init__(reciprocal_rank_loss, arguments, reduction=reduction, name=name)
>>> loss = ReciprocalRankLoss()
>>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
0.5961
"""

from tfrank.losses.core.grid_ranks import sigmoid_kernel
from tfrank.losses.core.rows import Block, Kernel, score_rows

__all__ = ["Block", "Kernel", "score_rows", "sigmoid_kernel"]
