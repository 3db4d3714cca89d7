"""Which tests are traced where coverage is measured."""

import sys

import pytest

from support.measured import MOST, chosen, untraced

pytestmark = pytest.mark.one_rank


@pytest.mark.parametrize("n", [1, MOST, MOST + 1, 100])
def test_the_first_test_of_each_function_and_a_few_more(n, monkeypatch):
    monkeypatch.delenv("DISTSCAN_WHOLE", raising=False)
    names = [f"{function}[{i}]" for function in "fg" for i in range(n)]
    traced = chosen(names)
    assert {"f[0]", "g[0]"} <= traced <= set(names)
    assert 2 * min(n, MOST // 2) <= len(traced) <= 2 * MOST
    monkeypatch.setenv("DISTSCAN_WHOLE", "1")
    assert chosen(names) == set(names)


@pytest.mark.parametrize("module", ["coverage.tracer", "bdb"])
def test_coverage_alone_is_held(module):
    """A debugger's trace function stays in place."""
    tracer = type("Tracer", (), {"__module__": module, "__call__": lambda *_: None})()
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with untraced():
            inside = sys.gettrace()
        behind = sys.gettrace()
    finally:
        sys.settrace(before)
    assert inside is (None if module.startswith("coverage") else tracer)
    assert behind is tracer
