"""The sum of squares: an operator that changes the elements as they are read."""

import numpy as np

import distscan

SQUARES = distscan.Operator(
    "squares",
    numpy=np.add,
    cuda="a + b",
    identity=0,
    commutative=True,
    load=np.square,
    cuda_load="x * x",
)
