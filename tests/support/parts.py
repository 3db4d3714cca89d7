"""Which tests each of several jobs side by side runs (``launch/parts.sh``)."""


def part_of(names: list[str], part: str) -> set[str]:
    """Return part "i/n" of the tests: every n-th by name, so that those of one function spread.

    >>> sorted(part_of(["a", "b", "c", "d", "e"], "2/3"))
    ['b', 'e']
    """
    i, n = map(int, part.split("/"))
    return set(sorted(names)[i - 1 :: n])
