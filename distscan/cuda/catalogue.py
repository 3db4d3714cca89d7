"""The kernels that the scans of an operator may need on a GPU, which need not be there."""

from collections.abc import Iterator
from typing import NamedTuple

import cupy

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from .definitions import definitions, register_types
from .kernel import Built, build, request_name
from .memory import count
from .policy import reduce_policy, scan_policy, short_policy

# Numbers of elements, 16 in each octave: the policies of scans depend on them.
SIZES = [int(2 ** (8 + step / 16)) for step in range(22 * 16 + 1)]


class KernelRequest(NamedTuple):
    """A kernel that a scan needs."""

    entry: str
    macros: tuple[tuple[str, object], ...]
    arch: str

    @property
    def name(self) -> str:
        """The name under which a wheel may have it."""
        return request_name(f"{self.entry}.cu", dict(self.macros), self.arch)

    def build(self) -> Built:
        """Compile, or read from the cache: see ``kernel.build``."""
        return build(f"{self.entry}.cu", dict(self.macros), self.arch)


# The policies of any number of multiprocessors are the same, at other sizes.
_SM_COUNT = 132


def current_arch() -> str:
    """Return the compute capability of the current GPU, such as "90"."""
    count()  # raises BackendError if there is none
    return str(cupy.cuda.Device().compute_capability)


def scan_kernels(op: Operator, types: Types, arch: str) -> list[KernelRequest]:
    """Return the kernels for shards [n] on one rank or several, each once.

    The scans are inclusive or exclusive, with or without flags of segments. ``types`` are those of
    ``dtypes.resolve``. Rows, keys and ``reverse`` have kernels of their own; so have ``initial`` of
    inclusive scans in segments, and plans that are "fused" or "nccl" by name.
    """
    types = register_types(op, types)
    forms = [
        Form(exclusive=exclusive, segmented=segmented)
        for segmented in (False, True)
        for exclusive in (False, True)
    ]
    requests = [
        KernelRequest(entry, tuple(definitions(op, types, form, **numbers).items()), arch)
        for each in forms
        for entry, form, numbers in _policies(op, types, each, arch)
    ]
    return list(dict.fromkeys([*requests, KernelRequest("call_off", (), arch)]))


def _policies(
    op: Operator, types: Types, form: Form, arch: str
) -> Iterator[tuple[str, Form, dict[str, int | str]]]:
    """Yield the kernels of a form as ``launches`` has them: entry, form and policy."""
    source = "Flagged" if form.segmented else "Item"
    reduced = Form(segmented=form.segmented)
    reduce = reduce_policy(op, types, reduced, arch)
    numbers: dict[str, int | str] = {"source": f"{source}Pointer", **reduce._asdict()}
    yield "reduce", reduced, numbers
    yield "reduce_exchange", reduced, numbers  # of plans whose GPUs exchange totals
    source = "FlaggedItems" if form.segmented else "Items"
    # An exclusive scan has a first value.
    first = str(form.segmented and form.exclusive).lower()
    for n in SIZES:
        short = short_policy(types, form, n, _SM_COUNT)
        if short is not None:
            yield "scan_short", form, {**short._asdict()}
        else:
            scan = scan_policy(types, form, arch, n, _SM_COUNT)
            yield "scan", form, {**scan._asdict(), "source": source, "first": first}
