"""Code on a GPU lives as long as the kernels that use it."""

import gc
import weakref
from unittest.mock import patch

import pytest

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import kernel


class Code:
    """A function of a module, which is unloaded when the last object of it is gone."""

    ptr = 5


def test_code_that_two_threads_have_loaded_stays():
    """Each thread has code of its own, and the cache keeps one of them."""
    loaded = []

    def load(*given):
        code = Code()
        loaded.append(weakref.ref(code))
        return code

    with (
        patch.object(kernel, "cupy"),
        patch.object(kernel, "check_device"),
        patch.object(kernel, "make_context"),
        patch.object(kernel, "_loaded", load),
    ):
        made = [kernel.Kernel("add", {}, kernel.np.dtype("f"), 32) for _ in range(2)]
    gc.collect()
    assert [code() is not None for code in loaded] == [True, True]
    del made
    gc.collect()
    assert [code() for code in loaded] == [None, None]
