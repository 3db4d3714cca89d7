"""Which backend and which GPU each rank uses; a stand-in plays the GPUs, on any machine."""

import sys

import pytest

import distscan.cuda
from distscan import binding
from distscan.core.errors import BackendError
from support import stand_in


@pytest.fixture
def gpus(comm, monkeypatch):
    """Stand in for the CUDA backend: a node with so many GPUs, and ranks that cannot use them."""

    def install(count, without=()):
        def bind(local_rank):
            if comm.rank in without:
                raise BackendError("no NVIDIA GPU is visible; look at CUDA_VISIBLE_DEVICES")
            return "Some GPU", f"address {local_rank % count}"

        stand_in.gpus(monkeypatch, bind=bind)

    return install


def refuse(message):
    raise AssertionError(f"warned: {message}")


def test_one_rank_per_gpu(gpus, comm):
    gpus(comm.size)
    bound = binding.bind(comm, "auto", refuse)
    assert (bound.name, bound.device, bound.nodes) == ("cuda", "Some GPU", 1)


def test_shared_gpus_are_warned_of(gpus, comm):
    gpus(1)
    warnings = []
    assert binding.bind(comm, "cuda", warnings.append).name == "cuda"
    assert len(warnings) == (1 if comm.size > 1 else 0)
    assert all(f"{comm.size} ranks share a GPU" in warning for warning in warnings)


def test_auto_uses_the_cpu_where_one_rank_has_no_gpu(gpus, comm):
    """All ranks, not some of them; and the report says why."""
    gpus(8, without=[comm.size - 1])
    bound = binding.bind(comm, "auto", refuse)
    assert bound.name == "cpu"
    assert bound.device.endswith(": no NVIDIA GPU is visible")


def test_cuda_fails_where_one_rank_has_no_gpu(gpus, comm):
    gpus(8, without=[comm.size - 1])
    with pytest.raises(BackendError, match="no NVIDIA GPU is visible; look at CUDA_VISIBLE"):
        binding.bind(comm, "cuda", refuse)


def test_no_cupy(comm, monkeypatch):
    monkeypatch.setitem(sys.modules, "distscan.cuda.memory", None)
    monkeypatch.delattr(distscan.cuda, "memory", raising=False)
    with pytest.raises(BackendError, match=r"pip install '\.\[cuda13\]'"):
        binding.bind(comm, "cuda", refuse)
    assert "CuPy cannot be imported" in binding.bind(comm, "auto", refuse).device


def test_the_cpu_asks_for_no_gpu(gpus, comm):
    gpus(8, without=range(comm.size))
    assert binding.bind(comm, "cpu", refuse).name == "cpu"
