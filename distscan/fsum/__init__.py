"""Exact sums, each rounded once: the numbers, the operators that add them, and their arguments.

=============  =====================================================================================
`window.py`    floats as integers in a window of bits: their digits, and sums of these, rounded
`special.py`   infinities, NaN and -0.0, which integers do not have
`words.py`     the operators: over one or two words, for kernels; over digits, for any window
`request.py`   the checks of the arguments
=============  =====================================================================================

The package is below the backends, whose kernels add words. `engine/fsum_scan.py` has the scan over
all ranks, `job/plan.py` and `job/rounds.py` the scan of files. `engine/digit_steps.py` has the
steps of a shard by digits.
"""
