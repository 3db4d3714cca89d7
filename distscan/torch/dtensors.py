"""DTensors: a function gets the local tensor, and the ranks that have the others along ``dim``."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..mpi.communicators import Comm, alone
from ..mpi.torch_group import torch_comm

Tensor = Any


def is_dtensor(x: object) -> bool:
    """Return whether ``x`` is a DTensor; their module is not imported here."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def call_locally(
    function: Callable[..., Any], tensors: Sequence[Tensor], dim: int, **form: Any
) -> Any:
    """Call a function of this package with the local parts of DTensors; return DTensors.

    The results have the shape and the placements of the first tensor. Along ``dim``, the ranks of
    one dimension of the mesh have the shards. Raises TypeError and ValueError on every rank alike:
    all see the same meshes, placements and shapes.
    """
    first = tensors[0]
    for tensor in tensors:
        if not is_dtensor(tensor) or _layout(tensor) != _layout(first):
            raise TypeError(
                "all tensors must be DTensors of one shape and mesh, with the same placements"
            )
    if form.pop("comm", None) is not None:
        raise TypeError("comm= is not for DTensors: their mesh has the ranks")
    for name in ("initial", "segments", "cu_seqlens", "return_last", "return_total"):
        if form.get(name) is not None and form[name] is not False:
            raise TypeError(f"{name}= is not for DTensors: pass local tensors, and comm=")
    comm = _ranks_along(first, dim)
    results = function(*(tensor.to_local() for tensor in tensors), dim, comm=comm, **form)
    if isinstance(results, tuple):
        return tuple(_like(first, result) for result in results)
    return _like(first, results)


def _layout(x: Tensor) -> Any:
    return x.shape, x.device_mesh, tuple(x.placements)


def _like(x: Tensor, local: Tensor) -> Tensor:
    """Return the DTensor of a local result, in the shape and with the placements of ``x``."""
    shape: Any = {"shape": x.shape, "stride": x.stride()}
    return type(x).from_local(local, x.device_mesh, x.placements, run_check=False, **shape)


def _ranks_along(x: Tensor, dim: int) -> Comm:
    """Return the ranks that have the shards along ``dim``."""
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(f"dim is {dim}; the tensor has {x.ndim} dimensions")
    shard: Any = sys.modules["torch.distributed.tensor"].Shard
    mesh, placements = x.device_mesh, x.placements
    if any(placement.is_partial() for placement in placements):
        raise ValueError(f"the placements are {placements}: redistribute partial sums first")
    along = [i for i, placement in enumerate(placements) if placement.is_shard(dim % x.ndim)]
    if not along:
        return alone()
    if len(along) > 1 or type(placements[along[0]]) is not shard:
        raise ValueError(
            f"the placements are {placements}: dim {dim} must be sharded over one dimension of the "
            "mesh, in order"
        )
    coordinate = enumerate(mesh.get_coordinate())
    place = tuple(slice(None) if i == along[0] else at for i, at in coordinate)
    ranks = mesh.mesh[place].tolist()
    if ranks != sorted(ranks):  # PyTorch's own functions differ in the order of such shards
        raise ValueError(f"the mesh has ranks {ranks} along dim {dim}: they must rise")
    return cast(Comm, torch_comm(mesh.get_group(along[0])))
