"""Differentiable scans of PyTorch tensors whose shards lie on several ranks.

``dim`` is the dimension along which the shards are joined, in rank order, and scanned. Shards may
differ in length there, and may be empty. Every function is collective over ``comm``, and so is the
backward pass of its result: each backward pass is itself a scan.

    y = distscan.torch.cumsum(x, dim=1)  # x [batch, n of this rank, features]
    loss(y).backward()                   # on every rank

======================  ==========================================  ==============  ===============
function                backward                                    it keeps        derivatives
======================  ==========================================  ==============  ===============
``cumsum``              a sum from the other end                    nothing         of any order
``cumprod``             a product and a recurrence; right at zeros  x               of any order
``linear_recurrence``   a recurrence from the other end             a, the result   of any order
``logcumsumexp``        two ``logcumsumexp`` from the other end     x, the result   first
``cummax``, ``cummin``  a recurrence; to the element that won       a mask          first
``scan``                that of its operator; of sums and products in segments, a recurrence's
======================  ==========================================  ==============  ===============

If one rank's tensor needs a gradient, all ranks take part in the backward pass, and the result must
be part of the loss on all of them. A rank that does not come makes the others raise ``RankError``
after ``DISTSCAN_WAIT`` seconds (default: 60).
"""

from .functions import cummax, cummin, cumprod, cumsum, linear_recurrence, logcumsumexp, scan

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "linear_recurrence", "logcumsumexp", "scan"]
