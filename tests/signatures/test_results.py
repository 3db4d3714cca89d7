"""What goes in comes out, as type checkers see it: ``launch/lint.sh`` has mypy check this file.

Run as tests, the same lines show that NumPy's results are what their types say. Other libraries'
arrays are ``Tensor`` here, because type checkers need not find these libraries.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import assert_type

import distscan
from distscan.job.report import Report

pytestmark = pytest.mark.fast

Arrays = NDArray[Any]


class Tensor:
    """An array of another library, which supports DLPack, and can be converted to NumPy's."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        raise NotImplementedError

    def __array__(self) -> Arrays:
        raise NotImplementedError


SUM_OF_PAIRS = distscan.Operator(
    "sum_of_pairs",
    numpy=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    identity=(0, 0),
    arity=2,
)
POSITIVE = distscan.Predicate("positive", numpy=lambda x: x > 0, cuda="x > 0")


def is_array(x: object) -> bool:
    return type(x) is np.ndarray


def test_scan() -> None:
    x = np.array([3, 1, 4], np.int8)
    assert is_array(assert_type(distscan.scan(x), Arrays))  # not of int8: sums are int64
    assert is_array(assert_type(distscan.scan(x, "max", axis=0, reverse=True), Arrays))
    assert is_array(assert_type(distscan.scan([3, 1, 4]), Arrays))
    assert is_array(assert_type(distscan.scan((3.0, 1.0)), Arrays))
    assert is_array(assert_type(distscan.scan([[3, 1], [4, 1]], axis=0), Arrays))
    assert is_array(assert_type(distscan.scan(range(3)), Arrays))
    assert is_array(assert_type(distscan.scan([np.int8(3)]), Arrays))
    assert is_array(assert_type(distscan.scan(5), Arrays))
    assert is_array(distscan.scan(x=x))
    pair = assert_type(distscan.scan((x, x), SUM_OF_PAIRS), tuple[Arrays, ...])
    assert isinstance(pair, tuple)
    assert all(map(is_array, pair))


def test_cumulative_functions() -> None:
    x = np.array([3.0, 1.0, 4.0])
    assert is_array(assert_type(distscan.cumsum(x, 0, exclusive=True), Arrays))
    assert is_array(assert_type(distscan.cumprod(x, dtype="f4"), Arrays))
    assert is_array(assert_type(distscan.cummax(x), Arrays))
    assert is_array(assert_type(distscan.cummin(x), Arrays))
    assert is_array(assert_type(distscan.logcumsumexp(x), Arrays))
    assert is_array(assert_type(distscan.fcumsum(x, window=(0, 9), initial=0.0), Arrays))
    assert is_array(assert_type(distscan.nancumsum([3.0, 1.0]), Arrays))
    assert is_array(assert_type(distscan.nancumprod(x), Arrays))
    assert is_array(assert_type(distscan.cumulative_sum(x, include_initial=True), Arrays))
    assert is_array(assert_type(distscan.cumulative_prod(x), Arrays))


def test_selections() -> None:
    x = np.array([3, 1, 4])
    elements, start = assert_type(distscan.compact(x, x > 1), tuple[Arrays, int])
    assert (is_array(elements), type(start)) == (True, int)
    members, _ = assert_type(distscan.compact((x, x), x > 1), tuple[tuple[Arrays, ...], int])
    assert isinstance(members, tuple)
    elements, start = assert_type(distscan.select(x, POSITIVE), tuple[Arrays, int])
    assert (is_array(elements), type(start)) == (True, int)


def test_other_functions() -> None:
    b = np.array([3.0, 1.0])
    assert is_array(assert_type(distscan.linear_recurrence(0.5, b), Arrays))
    assert is_array(assert_type(distscan.linear_recurrence([0.5, 1], [3.0, 1.0]), Arrays))
    h, _ = assert_type(distscan.linear_recurrence(0.5, b, return_last=True), tuple[Arrays, Any])
    assert is_array(h)
    assert is_array(assert_type(distscan.segment_flags([0, 2]), Arrays))
    assert is_array(assert_type(distscan.partition(b, 2), NDArray[np.int64]))
    assert assert_type(distscan.offsets(0), tuple[int, int]) == (0, 0)
    with distscan.Plan(None, 2, b.dtype, backend="cpu") as plan:
        assert is_array(assert_type(plan(b), Arrays))


# ---- what only type checkers read ----------------------------------------------------------------


def arrays_of_other_libraries(x: Tensor, plan: distscan.Plan) -> None:
    assert_type(distscan.scan(x, axis=0), Tensor)
    assert_type(distscan.scan((x, x), SUM_OF_PAIRS), tuple[Tensor, ...])
    assert_type(distscan.cumsum(x), Tensor)
    assert_type(distscan.cumprod(x), Tensor)
    assert_type(distscan.cummax(x, 0), Tensor)
    assert_type(distscan.cummin(x, 0), Tensor)
    assert_type(distscan.logcumsumexp(x), Tensor)
    assert_type(distscan.fcumsum(x), Tensor)
    assert_type(distscan.nancumsum(x), Tensor)
    assert_type(distscan.nancumprod(x), Tensor)
    assert_type(distscan.cumulative_sum(x), Tensor)
    assert_type(distscan.cumulative_prod(x), Tensor)
    assert_type(distscan.compact(x, x), tuple[Tensor, int])
    assert_type(distscan.compact((x, x), x), tuple[tuple[Tensor, ...], int])
    assert_type(distscan.select(x, POSITIVE), tuple[Tensor, int])
    assert_type(distscan.linear_recurrence(0.5, x, reverse=True), Tensor)
    assert_type(distscan.linear_recurrence(x, x, return_last=True), tuple[Tensor, Any])
    assert_type(distscan.segment_flags(x), Tensor)
    assert_type(plan(x), Tensor)


async def services_and_files(x: Tensor) -> None:
    client, asynchronous = distscan.connect(), distscan.connect_async()
    assert_type(client.scan(x), Arrays)  # a service takes arrays of the host, and returns NumPy's
    assert_type(await asynchronous.scan(x), Arrays)
    assert_type(client.submit("x.npy").result(), Report)
    assert_type(await (await asynchronous.submit("x.npy")).result(), Report)
    assert_type(distscan.scan_file("x.npy", "y.npy"), Report)


def mistakes(x: Arrays) -> None:
    # mypy tells if one of these errors is no more: warn_unused_ignores, of strict.
    distscan.scan(x, exlusive=True)  # type: ignore[call-overload]
    distscan.cumsum(x, exlusive=True)  # type: ignore[call-overload]
    distscan.scan(None)  # type: ignore[call-overload]
    distscan.compact(x)  # type: ignore[call-overload]
    distscan.linear_recurrence(0.5, x, return_total=True)  # type: ignore[call-overload]
