"""Which tests a run measures the coverage of, where coverage.py traces it.

To trace every test takes half as long again. The tests of one function differ in their parameters
and run mostly the same lines, so a few of them are traced; with ``DISTSCAN_WHOLE=1`` all are.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

MOST = 10  # traced tests of one function


def chosen(names: list[str]) -> set[str]:
    """Return the tests to trace: of each function the first, which may import, and every n-th.

    >>> sorted(chosen(["a", *(f"b[{i:02}]" for i in range(30))]))[:4]
    ['a', 'b[00]', 'b[03]', 'b[06]']
    """
    if os.environ.get("DISTSCAN_WHOLE") == "1":
        return set(names)
    functions = defaultdict(list)
    for name in names:
        functions[name.partition("[")[0]].append(name)
    return {name for tests in functions.values() for name in tests[:: -(-len(tests) // MOST)]}


@contextmanager
def untraced() -> Iterator[None]:
    """Take coverage.py's trace function away for a while; a debugger's stays.

    Where coverage.py uses ``sys.monitoring`` there is none, and tracing takes little time.
    """
    tracer = sys.gettrace()
    if not type(tracer).__module__.startswith("coverage"):
        yield
        return
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
