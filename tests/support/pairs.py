"""Few cases that have every pair of values, in place of the product of all values.

Most faults need one value, or two together (Kuhn, Wallace, Gallo: Software fault interactions and
implications for software testing, IEEE Transactions on Software Engineering 30, 2004).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Case = dict[str, Any]


def pairwise(
    values: dict[str, Sequence[Any]], allowed: Callable[[Case], bool] = lambda case: True
) -> list[Case]:
    """Return cases, the same each time, so that each allowed pair of values is in one of them.

    The greedy algorithm of AETG (Cohen, Dalal, Fredman, Patton: The AETG system, IEEE Transactions
    on Software Engineering 23, 1997) without its random numbers: a case begins with a pair that no
    case has yet, and takes for each further parameter the value with the most new pairs.

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

    def completions(chosen: dict[str, int]) -> Iterator[dict[str, int]]:
        """Yield the complete cases with these values, those with the most new pairs first."""
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
    **values: Iterable[Any],
) -> pytest.MarkDecorator:
    """Parametrize a test by such cases; ``indirect`` names parameters that are of fixtures."""
    cases = [
        tuple(case.values())
        for case in pairwise({name: list(values[name]) for name in values}, allowed)
    ]
    return pytest.mark.parametrize(tuple(values), cases, indirect=list(indirect))
