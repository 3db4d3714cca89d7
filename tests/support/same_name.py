"""Operators of one name: each differs from the first one in one thing."""

import numpy as np

import distscan

_ONE, _TWO = 1, 2


def _plus(a, b):
    return a + b


def _with(value):
    return lambda a, b: a + b + value


def _global_one(a, b):
    return a + b + _ONE


def _global_two(a, b):
    return a + b + _TWO


def _default(a, b, c=1):
    return a + b + c


def _other_default(a, b, c=2):
    return a + b + c


def mine(numpy=_plus, **given):
    return distscan.Operator("mine", numpy=numpy, **{"identity": 0, **given})


FIRST = mine()
AGAIN = mine(lambda a, b: a + b)
CLOSURE = mine(_with(1))
OTHERS = {
    "ufunc": mine(np.maximum),
    "code": mine(lambda a, b: a - b),
    "constant": mine(lambda a, b: a + b + 3),
    "closure": CLOSURE,
    "other-closure": mine(_with(2)),
    "global": mine(_global_one),
    "other-global": mine(_global_two),
    "default": mine(_default),
    "other-default": mine(_other_default),
    "cuda": mine(cuda="a + b"),
    "load": mine(load=np.negative),
    "identity": mine(identity=1),
    "version": mine(version="2"),
}
MAXIMUM, VERSION = OTHERS["ufunc"], OTHERS["version"]
