"""Cases that Hypothesis draws, the same on all ranks; floats that are hard to add."""

from collections.abc import Callable
from math import ldexp
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mpi4py import MPI

from support.cases import SEED
from support.exact import FORMATS, dtype_of


def run_campaign(
    comm: MPI.Intracomm,
    cases: st.SearchStrategy[Any],
    check: Callable[[Any], None],
    examples: int,
    describe: Callable[[Any], str] = str,
) -> None:
    """Check each case on all ranks. So they are in step, also while a case is made smaller."""

    def run(case: Any) -> None:
        own: Exception | None = None
        try:
            check(case)
        except Exception as error:
            own = error
        failed = [rank for rank, wrong in enumerate(comm.allgather(own is not None)) if wrong]
        if failed:
            raise AssertionError(f"ranks {failed} fail for {describe(case)}") from own

    @seed(SEED)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def lead(case: Any) -> None:
        comm.bcast((case,))
        run(case)

    if comm.rank == 0:
        try:
            lead()
        finally:
            comm.bcast(None)
        return
    fault: Exception | None = None
    while (sent := comm.bcast(None)) is not None:
        fault = None
        try:
            run(*sent)
        except AssertionError as error:
            fault = error
    if fault is not None:
        raise fault


# ---- floats of all bit patterns, and families of floats that are hard to add ---------------------


NAMES = sorted(FORMATS)


def float_of(name, bits):
    """The number of a bit pattern; one that is not finite loses its highest bit of the exponent."""
    size = 8 * dtype_of(name).itemsize
    ones = (1 << size - FORMATS[name][0]) - 1
    if bits >> FORMATS[name][0] - 1 & ones == ones:
        bits ^= 1 << size - 2
    return float(np.array(bits, f"u{size // 8}").view(dtype_of(name)))


def patterns(name):
    """Numbers of a type, each bit pattern as likely as another."""
    size = 8 * dtype_of(name).itemsize
    return st.integers(0, (1 << size) - 1).map(lambda bits: float_of(name, bits))


def between(name, low, high):
    """Multiples of 2^low that are below 2^high in magnitude."""
    precision = FORMATS[name][0]
    most = (1 << precision) - 1

    def number(drawn):
        exponent, whole = drawn
        whole = whole >> max(0, exponent + whole.bit_length() - high) if whole > 0 else whole
        return ldexp(whole, exponent)

    wholes = st.sampled_from([0, 1, most, most - 1, 1 << precision - 1]) | st.integers(0, most)
    sizes = st.tuples(st.integers(low, high - 1), wholes).map(number)
    return st.tuples(st.sampled_from([1.0, -1.0]), sizes).map(lambda drawn: drawn[0] * drawn[1])


def several(numbers, size):
    """Lists of up to ``size`` numbers, half of them long: Hypothesis prefers short ones."""
    least = st.sampled_from([0, size // 2])
    return least.flatmap(lambda least: st.lists(numbers, min_size=least, max_size=size))


@st.composite
def of_words(draw, name, size, words=None):
    """Numbers whose lowest and highest bit are some words of 64 bits apart."""
    _, lowest, end = FORMATS[name]
    words = words or draw(st.integers(1, -(-(end - lowest) // 64)))
    bits = min(64 * words - draw(st.integers(0, 63)), end - lowest)
    low = draw(st.integers(lowest, end - bits))
    numbers = draw(several(between(name, low, low + bits), size))
    found = [*numbers, ldexp(1.0, low), ldexp(1.0, low + bits - 1)]
    # Of one sign, their sums need the most bits.
    return found if draw(st.booleans()) else [abs(number) for number in found]


@st.composite
def ties(draw, name, result, size):
    """Numbers whose sums are half-way between two floats of the result, or next to half-way."""
    _, lowest, end = FORMATS[name]
    own, top = FORMATS[result][0], draw(st.integers(lowest, end - 1))
    places = [0, 1, own - 1, own, own + 1, 2 * own, 3 * own + 8, 8 * own]
    powers = st.sampled_from([ldexp(1.0, max(top - place, lowest)) for place in places])
    signs = st.sampled_from([1.0, -1.0])
    return draw(several(st.builds(lambda a, b: a * b, signs, powers), size))


def opposed(numbers):
    """The same numbers and their opposites, in any order."""
    return numbers.flatmap(lambda x: st.permutations([*x, *(-each for each in x)]))


def hard(name, result, size):
    """Lists of numbers of a type that are hard to add; sums are rounded to the type ``result``."""
    precision, lowest, end = FORMATS[name]
    families = {
        "subnormal": between(name, lowest, lowest + precision - 1),
        "overflowing": between(name, end - precision - 1, end),
        "any": patterns(name),
        "powers": st.integers(lowest, end - 1).map(lambda power: ldexp(1.0, power)),
        "zeros": st.sampled_from([0.0, -0.0]),
    }
    lists = {family: several(numbers, size) for family, numbers in families.items()}
    lists["mixed"] = several(st.one_of(*families.values()), size)
    lists["words"] = of_words(name, size)
    lists["ties"] = ties(name, result, size)
    lists["opposed"] = opposed(st.one_of(lists["any"], lists["words"], lists["mixed"]))
    # Large numbers cancel, and a small one is left: an ill-conditioned sum.
    left = st.lists(families["any"] | families["subnormal"], min_size=1, max_size=2)
    lists["ill-conditioned"] = st.tuples(lists["opposed"], left).map(lambda both: both[0] + both[1])
    return st.sampled_from(sorted(lists)).flatmap(lists.get)
