"""What the tuning tools need of the GPU's steps beside the public names. All of it is here."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import cupy as cp
import numpy as np

from distscan.core.dtypes import Types
from distscan.core.form import PLAIN, Extents, Form
from distscan.core.operators import Operator
from distscan.cuda import columns, definitions, launches, policy
from distscan.cuda import policy as reductions
from distscan.cuda import steps as cuda

# ---- steps that no public call does alone --------------------------------------------------


def reducer(op: Operator, types: Types, n: int) -> Callable[[Any, Any], Any]:
    """Return a call that begins to reduce x [n], and returns what knows the total.

    The call's second argument is where a scan would be stored; nothing is.
    """
    return cuda.ReduceScan(op, types, Form(Extents(length=n))).begin


def adder(op: Operator, types: Types, x: Any, out: Any, offset: Any) -> Callable[[], object]:
    """Scan ``x`` [n] into ``out`` [n]; return a call that adds ``offset`` [()] to every element."""
    steps = cuda.ScanAdd(op, types, Form(Extents(length=len(x))))
    pending = steps.begin(x, out)
    return lambda: steps.finish(pending, offset)


def column_reducer(
    op: Operator, types: Types, shape: tuple[int, int]
) -> tuple[Any, Callable[[Any], object]]:
    """Return totals [shape[1]], and a call that reduces the columns of x [shape] to them."""
    n, inner = shape
    kernel = columns.Reduce(op, types, n, Form(Extents(inner=inner)))
    totals = cp.empty(inner, types.acc)

    def reduce(x: Any) -> None:
        kernel.prepare(x, totals.data.ptr, epoch=1)
        cuda.launch(kernel, cp.cuda.get_current_stream())

    return totals, reduce


# ---- the policies in use, and others in their place ----------------------------------------


def scan_policy(op: Operator, types: Types, nbytes: int, *, segmented: bool) -> tuple[Types, Any]:
    """Return the types that threads hold, and the policy of a scan of so many elements."""
    held = definitions.register_types(op, types)
    form = Form(segmented=True) if segmented else PLAIN
    arch = cp.cuda.Device().compute_capability
    return held, policy.scan_policy(held, form, arch, nbytes, policy.sm_count())


def reduce_policy(op: Operator, types: Types) -> Any:
    """Return the policy of a reduction."""
    held = definitions.register_types(op, types)
    return reductions.reduce_policy(op, held, PLAIN, cp.cuda.Device().compute_capability)


@contextmanager
def chosen(name: str, instead: Any) -> Iterator[None]:
    """Put ``instead`` in the place of what ``name`` would return, while kernels are made."""
    with patch.object(policy if name == "scan_policy" else launches, name, lambda *_: instead):
        yield


@contextmanager
def column_policy(change: dict[str, int] | None) -> Iterator[None]:
    """Change fields of the policy down columns; None: take the kernel that is not in use."""
    used, walks = columns.columns_policy, columns.thread_policy

    def changed(*arguments: Any) -> Any:
        chosen, strips = used(*arguments)
        return chosen._replace(**(change or {})), strips

    def other(types: Any, inner: int, count: int, sm_count: int) -> Any:
        """Walk where ``walks`` would not, and the other way round."""
        if walks(types, inner, count, sm_count) is not None:
            return None
        return walks(types, inner, 1 << 40, sm_count)

    with ExitStack() as stack:
        walking = other if change is None else lambda *_: None
        stack.enter_context(patch.object(columns, "thread_policy", walking))
        if change is not None:
            stack.enter_context(patch.object(columns, "columns_policy", changed))
        yield


def poison(array: Any) -> None:
    """Overwrite every byte, so that no result can be left from before."""
    array.view(np.uint8)[...] = 0xA5
