"""The cases of a run: the seed, the share of them, their forms, their cuts into shards; pairs."""

import functools
import inspect
import itertools
import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from mpi4py import MPI

# ---- the seed, the same on every rank, and the share of the cases --------------------------------


#: Whether all cases run, or a part of those that take long.
WHOLE = os.environ.get("DISTSCAN_WHOLE") == "1"

_random = WHOLE or "CI" not in os.environ  # in CI, each run has the same data
SEED = int(os.environ.get("DISTSCAN_SEED") or (secrets.randbelow(10**9) if _random else 0))
SEED = MPI.COMM_WORLD.bcast(SEED)
os.environ["DISTSCAN_SEED"] = str(SEED)  # of pytest-xdist's workers, too


def sample(cases: Iterable[Any], share: int = 8) -> list[Any]:
    """One of ``share`` cases, the same in each run; with ``DISTSCAN_WHOLE=1`` all."""
    cases = list(cases)
    return cases if WHOLE else random.Random(0).sample(cases, -(-len(cases) // share))


STRATEGIES = ["scan-add", "reduce-scan", *(["single-pass"] if MPI.COMM_WORLD.size == 1 else [])]


# ---- every form of a scan ------------------------------------------------------------------------


FORMS = [
    {"exclusive": exclusive, "initial": initial, "reverse": reverse}
    for exclusive, initial, reverse in itertools.product((False, True), (None, 3), (False, True))
]
forms = pytest.mark.parametrize("form", FORMS)


# ---- how a global array is cut into shards, one a rank -------------------------------------------


Cut = Callable[[int], slice]

# Every cut among few ranks, the one with the most in it among many: the paths are the same.
CUTS = ["holes", "uneven", "first", "last"][: {2: 4, 3: 4, 4: 2}.get(MPI.COMM_WORLD.size, 1)]
if MPI.COMM_WORLD.size == 1:
    CUTS = ["whole"]

# For tests of many forms: empty shards between others, and among few ranks shards of any length.
two_cuts = pytest.mark.parametrize(
    "cut", CUTS[: 2 if MPI.COMM_WORLD.size < 4 else 1], indirect=True
)
one_cut = pytest.mark.parametrize("cut", CUTS[:1], indirect=True)


# For tests that take long where many ranks share few cores.
few_ranks = pytest.mark.skipif(
    MPI.COMM_WORLD.size > 4, reason="it takes long where 8 ranks share two cores"
)


def length(mine: slice) -> int:
    """How many elements this rank's slice has."""
    return mine.stop - mine.start


# ---- few cases that have every pair of values, in place of the product of all values -------------


Case = dict[str, Any]


def pairwise(
    values: dict[str, Sequence[Any]], allowed: Callable[[Case], bool] = lambda case: True
) -> list[Case]:
    """Return cases, the same each time, so that each allowed pair of values is in one of them.

    The greedy algorithm of AETG (Cohen, Dalal, Fredman, Patton: The AETG system, IEEE Transactions
    on Software Engineering 23, 1997) without its random numbers: a case begins with a pair that no
    case has yet, and takes for each further parameter the value with the most new pairs.

    Parameters that ``allowed`` reads come first: cases that are not allowed are then left early.

    >>> for case in pairwise({"a": [0, 1], "b": [0, 1], "c": [0, 1]}):
    ...     print(*case.values())
    0 0 0
    0 1 1
    1 0 1
    1 1 0
    """
    choices = {name: range(len(values[name])) for name in values}
    missing = {
        ((a, i), (b, j)): None  # a dict keeps the order
        for a, b in combinations(values, 2)
        for i, j in product(choices[a], choices[b])
    }
    uses: Counter[tuple[str, int]] = Counter()

    def is_possible(chosen: dict[str, int]) -> bool:
        """Whether these values may be together, as far as ``allowed`` can tell without others."""
        try:
            return allowed({name: values[name][i] for name, i in chosen.items()})
        except KeyError:
            return True

    def completions(chosen: dict[str, int]) -> Iterator[dict[str, int]]:
        """Yield the complete cases with these values, those with the most new pairs first."""
        if not is_possible(chosen):
            return
        name = next((each for each in values if each not in chosen), None)
        if name is None:
            yield chosen
            return

        def rank(i: int) -> tuple[int, int]:
            new = sum(pair_of(values, name, i, *other) in missing for other in chosen.items())
            return -new, uses[name, i]

        for i in sorted(choices[name], key=rank):
            yield from completions({**chosen, name: i})

    cases = []
    while missing:
        first = next(iter(missing))
        for chosen in completions(dict(first)):
            case = {name: values[name][chosen[name]] for name in values}
            if allowed(case):
                cases.append(case)
                uses.update(chosen.items())
                for one, other in combinations(chosen.items(), 2):
                    missing.pop(pair_of(values, *one, *other), None)
                break
        missing.pop(first, None)  # that of no allowed case
    return cases


def pair_of(names: dict[str, Any], a: str, i: int, b: str, j: int) -> tuple[Any, Any]:
    """Return two choices in the order of their parameters."""
    order = list(names)
    return ((a, i), (b, j)) if order.index(a) < order.index(b) else ((b, j), (a, i))


def pairs(
    allowed: Callable[[Case], bool] = lambda case: True,
    indirect: Sequence[str] = (),
    group_by: str = "",
    **values: Iterable[Any],
) -> Callable[[Callable[..., None]], Any]:
    """Parametrize a test by the cases of ``pairwise``; ``indirect`` names the fixtures among them.

    With ``group_by``, there is one test for each value of that parameter and of those in
    ``indirect``. The test runs all its cases, one after the other. So the ranks stay in step when
    a case fails on one rank.
    """
    cases = pairwise({name: list(values[name]) for name in values}, allowed)
    if not group_by:
        rows = [tuple(case.values()) for case in cases]
        return pytest.mark.parametrize(tuple(values), rows, indirect=list(indirect))
    names = (group_by, *indirect)
    groups: dict[tuple[int, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(tuple(id(case[name]) for name in names), []).append(case)

    def decorate(test: Callable[..., None]) -> Any:
        @functools.wraps(test)
        def run(cases: list[Case], **fixtures: Any) -> None:
            failures = []
            for case in cases:
                try:
                    test(**(case | fixtures))
                except Exception as failure:
                    failure.add_note(f"in the case {case}")
                    failures.append(failure)
            if failures:
                raise failures[0]

        signature = inspect.signature(test)
        of_fixtures = [
            each
            for each in signature.parameters.values()
            if each.name not in values or each.name in names
        ]
        first = inspect.Parameter("cases", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = signature.replace(parameters=[first, *of_fixtures])  # type: ignore[attr-defined]
        rows = [(*(group[0][name] for name in names), group) for group in groups.values()]
        return pytest.mark.parametrize((*names, "cases"), rows, indirect=list(indirect))(run)

    return decorate
