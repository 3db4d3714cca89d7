"""PyTorch and JAX themselves, where they are installed: in without a copy, out as the same kind."""

import os

import numpy as np
import pytest

import distscan
from distscan.core.form import bounds
from support.data import exact, expected

N = 4001


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def number(request):
    """The number of this rank's GPU; None for the CPU."""
    return None if request.param == "cpu" else request.getfixturevalue("cp").cuda.Device().id


def test_torch(number, comm, rng):
    torch = pytest.importorskip("torch")
    x, part = exact(rng, "sum", "f", N), slice(*bounds(N, comm.size, comm.rank))
    given = torch.tensor(x[part], device="cpu" if number is None else f"cuda:{number}")
    y = distscan.scan(given)
    assert type(y) is torch.Tensor
    assert y.device == given.device
    np.testing.assert_array_equal(y.cpu().numpy(), expected("sum", x)[part])
    np.testing.assert_array_equal(given.cpu().numpy(), x[part])
    assert distscan.scan(given, out=given) is given
    np.testing.assert_array_equal(given.cpu().numpy(), expected("sum", x)[part])


def test_jax(number, comm, rng):
    # JAX would take three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    try:
        device = jax.devices("cpu")[0] if number is None else jax.devices("gpu")[number]
    except RuntimeError as error:
        pytest.skip(f"JAX has no such device: {error}")
    x, part = exact(rng, "sum", "f", N), slice(*bounds(N, comm.size, comm.rank))
    given = jax.device_put(x[part], device)
    y = distscan.scan(given)
    assert isinstance(y, jax.Array)
    assert y.devices() == {device}
    np.testing.assert_array_equal(np.asarray(y), expected("sum", x)[part])
    np.testing.assert_array_equal(np.asarray(given), x[part])
    with pytest.raises(ValueError, match="JAX"):
        distscan.scan(given, out=given)
