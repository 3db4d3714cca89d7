"""What the host does around its kernels, without a GPU: types, shared memory, order of steps."""

from types import SimpleNamespace

import pytest

from distscan.core import dtypes, operators
from distscan.core.errors import BackendError
from support.maps import NIBBLES

cuda = pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import definitions, kernel, memory  # noqa: E402


@pytest.mark.parametrize(
    ("op", "x", "acc", "running"),
    [("max", "b", "b", "i"), ("min", "B", "H", "I"), ("sum", "?", "b", "i"), ("max", "?", "?", "I"),
     ("max", "i", "b", "b"), ("max", "d", "h", "h"), ("max", "b", "B", "B"), ("sum", "?", "?", "?"),
     (NIBBLES, "B", "B", "B"), ("sum", "f", "f", "f"), ("bitwise_and", "b", "b", "i"),
     ("bitwise_or", "?", "?", "I"), ("bitwise_xor", "i", "b", "b"), ("bitwise_xor", "?", "b", "i"),
     ("bitwise_or", "d", "h", "h"), ("logical_xor", "?", "?", "I"), ("logical_and", "b", "?", "I"),
     ("logical_or", "f", "?", "I"), ("max", "f", "?", "?")],
)  # fmt: skip
def test_narrow_integers_run_in_32_bits(op, x, acc, running):
    """Where the low bits come out the same: not if x is cut to the type, or it wraps to zero."""
    operator = operators.resolve(op)
    types = definitions.register_types(operator, dtypes.resolve(operator, x, acc))
    assert types.acc.char == running


def test_gpus_that_are_too_old():
    memory.check_device(SimpleNamespace(id=0, compute_capability="120"))
    with pytest.raises(BackendError, match=r"GPU 1 has compute capability 7.5; 8.0 \(A100\)"):
        memory.check_device(SimpleNamespace(id=1, compute_capability="75"))


def test_a_function_never_gets_less_shared_memory(monkeypatch):
    """Kernels of one function may need different sizes of it, whichever is made first."""
    most, function = [], -1  # no function of any other test
    driver = SimpleNamespace(funcSetAttribute=lambda f, attribute, value: most.append((f, value)))
    monkeypatch.setattr(kernel, "driver", driver)
    for shared in (30000, 200000, 100000, 210000):
        kernel.allow(function, shared)
    assert most == [(function, shared) for shared in (30000, 200000, 200000, 210000)]
