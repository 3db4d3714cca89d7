"""What ``Client.scan`` refuses is what ``distscan.scan`` refuses, by the same exception."""

from io import BytesIO

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.service import errors

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]

WRONG = {
    "axis-3": {"axis": 3},
    "axis-huge": {"axis": -(10**30)},
    "axis-text": {"axis": "0"},
    "axis-bool": {"axis": True},
    "axis-tuple": {"axis": (0, 1)},
    "op-unknown": {"op": "none"},
    "op-None": {"op": None},
    "op-unary": {"op": np.sin},
    "op-type": {"op": "bitwise_or"},
    "dtype-unknown": {"dtype": "nonsense"},
    "dtype-date": {"dtype": "M8[s]"},
    "dtype-object": {"dtype": object},
    "initial-text": {"initial": "abc"},
    "initial-bytes": {"initial": b"3"},
    "initial-object": {"initial": object},
    "initial-array": {"initial": [1, 2]},
    "initial-complex": {"initial": 1j},
    "initial-range": {"initial": 300, "dtype": "i1"},
    "initial-digits": {"initial": 10**5000, "dtype": "i8"},
    "initial-float": {"initial": 1.5, "dtype": "i8"},
    "initial-nan": {"initial": float("nan"), "dtype": "i8"},
    "out-shape": {"out": np.empty(3)},
    "out-list": {"out": [1.0, 2.0]},
    "out-type": {"out": np.empty(12, "M8[s]")},
    "out-read-only": {"out": np.broadcast_to(0.0, 12)},
    "segments-shape": {"segments": np.zeros(3, bool)},
    "segments-axis": {"segments": np.zeros((3, 4), bool), "axis": 0},
    "segments-object": {"segments": np.full(12, None)},
    "strategy": {"strategy": "none"},
    "scan-add": {"strategy": "scan-add", "segments": np.zeros(12, bool)},
    "x-None": {"x": None},
    "x-text": {"x": ["a", "b"]},
    "x-object": {"x": [2**70]},
    "x-date": {"x": np.zeros(3, "M8[s]")},
    "x-ragged": {"x": [[1], [1, 2]]},
    "x-structure": {"x": np.zeros(3, "i4,f8")},
    "x-masked": {"x": np.ma.masked_less(np.arange(5), 3)},
}
RIGHT = {
    "bool": {"initial": True, "dtype": "i8"},
    "float": {"initial": np.float32(0.1)},
    "number-0d": {"initial": np.array(7)},
    "scalar": {"x": 3.0},
    "scalar-axis": {"x": np.array(3.0), "axis": 0},
    "index": {"axis": np.int8(-1)},
    "truth": {"exclusive": "no", "reverse": 0},
    "long-double": {"x": np.arange(3, dtype=np.longdouble), "initial": np.longdouble(1) / 4},
    "list": {"x": []},
}


def raised(scan, given):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - compared with another one
        scan(**({"x": np.arange(12.0).reshape(3, 4)} | given))
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case, client):
    assert raised(client.scan, WRONG[case]) == raised(distscan.scan, WRONG[case])


@pytest.mark.parametrize("case", RIGHT)
def test_right(case, client):
    given = {"x": np.arange(12.0).reshape(3, 4)} | RIGHT[case]
    y, wanted = client.scan(**given), distscan.scan(**given)
    assert (type(y), y.dtype) == (type(wanted), wanted.dtype)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("op", [MPI.SUM, MPI.BXOR, np.multiply, np.logical_or, "min"])
def test_names_of_operators(op, client):
    """As ``distscan.scan`` takes them: names, NumPy's ufuncs, MPI's ops."""
    x = np.array([3, 1, 0, 4])
    np.testing.assert_array_equal(client.scan(x, op), distscan.scan(x, op))


def test_what_a_service_does_not_take(client):
    with pytest.raises(TypeError, match="operators that have a name, not hypot"):
        client.scan([1.0, 2.0], np.hypot)
    with pytest.raises(TypeError, match=r"op must be a name, .* not the function <lambda>; wrap"):
        client.scan([1.0, 2.0], lambda a, b: a + b)
    with pytest.raises(TypeError, match="an initial of 8 bytes"):
        client.scan(np.ones(3, np.longdouble), initial=np.longdouble(1) / 3)


@pytest.mark.parametrize("given", [{"axis": 3}, {"op": "none"}, {"strategy": "none"}])
def test_errors_that_the_service_finds(given, client):
    """Other clients leave the checks to it."""
    body = BytesIO()
    np.save(body, np.arange(12.0).reshape(3, 4))

    def scan(x, **params):
        client.request("POST", "/v1/scans", params=params, content=body.getvalue())

    assert raised(scan, given) == raised(distscan.scan, given)


@pytest.mark.parametrize("kind", [*errors._KINDS.values()])
def test_on_the_wire(kind):
    """Every exception that a service sends is raised as it is."""
    found = errors.from_json(errors.to_json(kind("no such axis")))
    assert (type(found), str(found)) == (kind, "no such axis")
