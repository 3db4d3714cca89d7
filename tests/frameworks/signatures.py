"""What goes in comes out of ``distscan.torch``, ``.jax`` and ``.xarray``, as type checkers see it.

``launch/test_frameworks.sh`` has mypy check this file, where these libraries are installed.
"""

from typing import Any

import jax
import torch
import xarray
from typing_extensions import assert_type

import distscan
import distscan.jax
import distscan.torch
import distscan.xarray


def tensors(x: torch.Tensor, mask: torch.Tensor) -> None:
    ours = distscan.torch
    assert_type(ours.cumsum(x, 0), torch.Tensor)
    assert_type(ours.cumsum(x, dim=0, exclusive=True, return_total=False), torch.Tensor)
    assert_type(ours.cumsum(x, 0, return_total=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(ours.cumprod(x, 0, return_total=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(ours.logcumsumexp(x, 0), torch.Tensor)
    assert_type(ours.cummax(x, 0), torch.Tensor)
    assert_type(ours.cummax(x, 0, return_indices=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(ours.cummin(x, 0, return_indices=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(ours.scan(x, 0, segments=mask), torch.Tensor)
    assert_type(ours.linear_recurrence(x, x), torch.Tensor)
    assert_type(
        ours.linear_recurrence(x, x, 1, return_last=True), tuple[torch.Tensor, torch.Tensor]
    )
    ours.cumsum(x, 0, return_indices=True)  # type: ignore[call-overload]
    ours.cummax(x, 0, return_total=True)  # type: ignore[call-overload]

    assert_type(distscan.cumsum(x), torch.Tensor)
    assert_type(distscan.compact(x, mask), tuple[torch.Tensor, int])
    assert_type(distscan.linear_recurrence(x, x, return_last=True), tuple[torch.Tensor, Any])


def jax_arrays(x: jax.Array) -> None:
    ours = distscan.jax
    assert_type(ours.cumsum(x, 0), jax.Array)
    assert_type(
        ours.cumsum(x, axis=0, axis_name="i", return_total=True), tuple[jax.Array, jax.Array]
    )
    assert_type(ours.cumprod(x, 0), jax.Array)
    assert_type(ours.cumlogsumexp(x, 0), jax.Array)
    assert_type(ours.cummax(x, 0, return_indices=True), tuple[jax.Array, jax.Array])
    assert_type(ours.cummin(x, 0), jax.Array)
    assert_type(ours.scan(x, 0, "max"), jax.Array)
    assert_type(ours.linear_recurrence(x, x), jax.Array)
    assert_type(ours.linear_recurrence(x, x, return_last=True), tuple[jax.Array, jax.Array])

    assert_type(distscan.cumsum(x), jax.Array)


def slabs(x: xarray.DataArray, several: xarray.Dataset) -> None:
    assert_type(distscan.xarray.cumsum(x, "time"), xarray.DataArray)
    assert_type(distscan.xarray.scan(several, "time", "max"), xarray.Dataset)
    assert_type(distscan.xarray.slab(several, "time"), xarray.Dataset)
