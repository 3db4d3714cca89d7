"""What only the GPU can get wrong: addresses, types, devices, 64-bit indices."""

import numpy as np
import pytest

import distscan
from distscan.core.form import bounds
from support.data import OPS, exact, expected
from support.host import host

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def mine(comm, n):
    return slice(*bounds(n, comm.size, comm.rank))


def test_element_that_no_vector_reaches(strategy, cp, comm, rng):
    """complex128 on an 8-byte boundary: aligned for its parts, never for a vector."""
    x = exact(rng, "sum", "D", 10007)
    part = mine(comm, x.size)
    base = cp.zeros(2 * (part.stop - part.start) + 1)
    odd = base[1:].view("D")
    odd[...] = cp.asarray(x[part])
    np.testing.assert_array_equal(host(distscan.scan(odd, strategy=strategy)), np.cumsum(x)[part])


@pytest.mark.parametrize("role", ["x", "out"])
def test_addresses_that_a_type_cannot_have(role, strategy, cp):
    arrays = {"x": cp.zeros(4, "f"), "out": cp.zeros(4, "f")}
    arrays[role] = cp.zeros(17, "b")[1:].view("f")
    with pytest.raises(ValueError, match=f"{role} begins at an address"):
        distscan.scan(**arrays, strategy=strategy)


def test_products_wrap(strategy, cp, comm):
    """int32 products stored as int64: 65536 * 65536 is 0 before it is widened."""
    x = np.full(40 * comm.size, 3, "i")
    x[20 * comm.size : 20 * comm.size + 3] = 65536
    part = mine(comm, x.size)
    out = cp.full(part.stop - part.start, -1, "l")
    distscan.cumprod(cp.asarray(x[part]), dtype="i", out=out, strategy=strategy)
    np.testing.assert_array_equal(host(out), np.cumprod(x, dtype="i")[part])


def test_double_to_half_rounds_once(strategy, cp, comm):
    x = np.zeros(8 * comm.size)
    x[0] = 1 + 2**-11 + 2**-30  # a tie for float16, if it is rounded to float32 before
    part = mine(comm, x.size)
    out = cp.zeros(part.stop - part.start, "e")
    distscan.scan(cp.asarray(x[part]), dtype="d", out=out, strategy=strategy)
    np.testing.assert_array_equal(host(out), np.cumsum(x).astype("e")[part])


def test_strides(strategy, cp, comm, rng):
    x = exact(rng, "sum", "l", 30001)
    part = mine(comm, x.size)
    spread = cp.zeros(2 * (part.stop - part.start), "l")
    spread[::2] = cp.asarray(x[part])
    np.testing.assert_array_equal(
        host(distscan.scan(spread[::2], strategy=strategy)), np.cumsum(x)[part]
    )
    backwards = cp.asarray(x[part])[::-1].copy()[::-1]
    out = cp.zeros(2 * (part.stop - part.start), "l")
    distscan.scan(backwards, out=out[::2], strategy=strategy)
    np.testing.assert_array_equal(host(out[::2]), np.cumsum(x)[part])
    assert not out[1::2].any()


def test_current_stream_and_device(cp, comm, rng):
    """Work queued before the call is seen; the current device and stream stay."""
    x = exact(rng, "sum", "f", 1 << 20)
    part = mine(comm, x.size)
    device = cp.cuda.Device().id
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        array = cp.asarray(x[part])
        for _ in range(64):  # keeps the stream busy while the host goes on
            array += 1
            array -= 1
        y = distscan.scan(array)
        after = y * 2
        assert cp.cuda.get_current_stream() == stream
    stream.synchronize()
    np.testing.assert_array_equal(host(after), 2 * expected("sum", x)[part])
    assert cp.cuda.Device().id == device


def test_numbers_cut_to_a_narrow_type(strategy, cp, comm, rng):
    """Each element is cut before it is compared: the maximum of 300 and 50 as int8 is 50."""
    x = rng.integers(-(2**31), 2**31, 70001).astype("i")
    part = mine(comm, x.size)
    for op in OPS:
        y = distscan.scan(cp.asarray(x[part]), op, dtype="b", strategy=strategy)
        np.testing.assert_array_equal(host(y), OPS[op].accumulate(x.astype("b"), dtype="b")[part])


def test_same_answer_as_the_host(cp, comm, rng):
    for op in OPS:
        x = exact(rng, op, "i", 70001)
        part = mine(comm, x.size)
        np.testing.assert_array_equal(
            host(distscan.scan(cp.asarray(x[part]), op)), distscan.scan(x[part], op)
        )


def test_host_memory_for_gpu_output(cp):
    with pytest.raises(TypeError, match="out is in the memory of the host, x of GPU"):
        distscan.scan(cp.zeros(4), out=np.zeros(4))


def test_another_current_device(cp, comm, rng):
    """Arrays of one GPU while another is current: strided ones too, which need copies."""
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    x = exact(rng, "sum", "l", 5001)
    part = mine(comm, x.size)
    here = cp.cuda.Device().id
    with cp.cuda.Device((here + 1) % 2):
        array = cp.asarray(x[part])
        spread = cp.zeros((part.stop - part.start, 2), "l")
        spread[:, 0] = array
        out = cp.zeros(2 * (part.stop - part.start), "l")
    for y in (distscan.scan(array), distscan.scan(spread[:, 0], out=out[1::2])):
        assert y.device == array.device
        np.testing.assert_array_equal(host(y), np.cumsum(x)[part])
    assert cp.cuda.Device().id == here
    with pytest.raises(TypeError, match="both must be in the same memory"):
        distscan.scan(array, out=cp.zeros(array.size, "l"))


def test_no_long_double(cp):
    with pytest.raises(TypeError, match="does not exist on a GPU"):
        distscan.scan(cp.zeros(4), dtype=np.longdouble)


@pytest.mark.parametrize("n", [2**31 + 1, 2**32 + 5])
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_more_elements_than_32_bits_count(n, strategy, cp, comm):
    """Every element follows from the one before it: y[i] = y[i-1] + x[i], modulo 256."""
    start, stop = bounds(n, comm.size, comm.rank)
    x = cp.random.randint(-128, 128, stop - start, dtype="b")
    y = cp.full(stop - start, 85, "b")
    distscan.scan(x, out=y, strategy=strategy)
    assert bool((cp.diff(y) == x[1:]).all())
    before = ([0, *comm.allgather(int(y[-1]))])[comm.rank]
    assert (int(y[0]) - int(x[0]) - before) % 256 == 0
    del x, y
    cp.get_default_memory_pool().free_all_blocks()


def test_binding(cp):
    """Local rank i takes GPU i modulo their number, and it becomes current."""
    from distscan.cuda import memory

    before = cp.cuda.Device().id
    addresses = set()
    for local_rank in range(2 * memory.count() + 1):
        name, address = memory.bind(local_rank)
        assert cp.cuda.Device().id == local_rank % memory.count()
        assert name
        addresses.add(address)
    assert len(addresses) == memory.count()
    cp.cuda.Device(before).use()


def test_staging_may_be_reused_at_once(cp, rng):
    """However busy the stream is, a chunk has arrived when upload or download returns."""
    from distscan.cuda import memory

    lane, x = memory.Lane(1 << 20), rng.integers(0, 1 << 60, 1 << 17)
    array, busy = cp.zeros(x.size, "l"), cp.zeros(1 << 26, "l")
    memory.synchronize()  # a lane waits for no kernels
    piece = lane.landing(array)
    piece[:] = x
    for _ in range(20):
        busy += 1
    lane.upload(array)
    piece[:] = 0
    np.testing.assert_array_equal(host(array), x)
    array += 1
    memory.synchronize()
    for _ in range(20):
        busy += 1
    np.testing.assert_array_equal(lane.download(array), x + 1)
