"""What may be passed as x and out: views, sequences, other libraries' arrays."""

import sys

import numpy as np
import pytest

import distscan
from distscan.core import arrays
from support.data import exact
from support.foreign import Exporter, Foreign, Library, exported_read_only


def test_sequences_and_scalars(comm):
    np.testing.assert_array_equal(
        distscan.scan([1, 2]), np.cumsum(np.tile([1, 2], comm.size))[2 * comm.rank :][:2]
    )
    np.testing.assert_array_equal(distscan.scan(3), [3 * comm.rank + 3])
    assert distscan.scan(np.float32(3)).dtype == np.float32
    np.testing.assert_array_equal(distscan.scan(3, axis=0), [3 * comm.rank + 3])


def test_dlpack(cut, rng):
    x = exact(rng, "sum", "d", 100)
    mine = cut(100)
    y = distscan.scan(Foreign(x[mine]))
    assert isinstance(y, Foreign)
    np.testing.assert_array_equal(y.array, np.cumsum(x)[mine])
    out = Foreign(np.full(mine.stop - mine.start, -1.0))
    assert distscan.scan(Foreign(x[mine]), out=out) is out
    np.testing.assert_array_equal(out.array, np.cumsum(x)[mine])


def of_every_function(array, whole, mine):
    """Return the results of all public functions for this rank's part of ``whole``, by name.

    ``array`` makes this rank's array from a NumPy array.
    """
    x, mask, ones = array(whole[mine]), whole[mine] > 0, np.ones(mine.stop - mine.start)
    y, last = distscan.linear_recurrence(array(ones), x, return_last=True)
    results = {"recurrence": y, "last": last, "kept": distscan.compact(x, array(mask))[0]}
    results["selected"] = distscan.select(x, POSITIVE)[0]
    results["pairs"] = distscan.scan((x, array(ones)), PAIRS)[1]
    results["flags"] = distscan.segment_flags(array(np.array([0, 2, 2, 5])))
    results["cuts"] = distscan.partition(array(abs(whole[mine])), 3)
    results["segments"] = distscan.scan(x, segments=array(mask))
    for name in NAMES:
        results[name] = getattr(distscan, name)(x)
    results["initial"] = distscan.cumulative_sum(x, include_initial=True)
    return results


NAMES = [name for name in distscan.__all__ if name.lstrip("flogna").startswith("cum")]
POSITIVE = distscan.Predicate("positive", numpy=lambda x: x > 0, cuda="x > 0")
PAIRS = distscan.Operator(
    "pairs",
    numpy=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    cuda="T{a.x0 + b.x0, a.x1 + b.x1}",
    arity=2,
)


def test_a_library_that_only_exports(xp, cut, rng):
    """As pyarrow's arrays: a scan of them gives what a scan of NumPy's and CuPy's gives."""
    x = exact(rng, "sum", "d", 60)
    mine = cut(60)
    wanted = of_every_function(xp.asarray, x, mine)
    results = of_every_function(lambda array: Exporter(xp.asarray(array)), x, mine)
    assert len(wanted) > 16
    for name, want in wanted.items():
        assert type(results[name]) is type(want), name
        xp.testing.assert_array_equal(results[name], want, name)
    out = Exporter(xp.zeros(len(x[mine])))
    assert distscan.scan(Exporter(xp.asarray(x[mine])), out=out) is out
    xp.testing.assert_array_equal(out.array, wanted["cumsum"])


@pytest.mark.parametrize(
    "x",
    [np.array([True, False, True]), np.array(3), np.zeros(0), np.arange(12)[::-3], np.eye(3).T],
    ids=["bool", "0-d", "empty", "mirrored", "transposed"],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_forms_of_exports(x, read_only):
    x = x.copy(order="K") if read_only else x
    x.flags.writeable = not read_only
    for axis in (None, 0):
        y = distscan.scan(Exporter(x), axis=axis)
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, distscan.scan(x, axis=axis), strict=True)


def test_dlpack_of_an_unknown_device():
    class Elsewhere(Foreign):
        def __dlpack_device__(self):
            return (8, 0)

    with pytest.raises(TypeError, match=r"segments is on DLPack device 8 \(Metal\); copy it to"):
        distscan.scan(np.zeros(3), segments=Elsewhere(np.zeros(3)))


def test_dlpack_of_read_only_memory(cut, rng):
    """JAX's arrays are: they are read, never written."""
    x = exact(rng, "sum", "d", 100)
    mine = cut(100)
    given = x[mine].copy()
    given.flags.writeable = False
    y = distscan.scan(Foreign(given))
    np.testing.assert_array_equal(y.array, np.cumsum(x)[mine])
    np.testing.assert_array_equal(given, x[mine])
    with pytest.raises(ValueError, match="out is read-only, as far as DLPack says"):
        distscan.scan(x[mine], out=Foreign(given))


class Unversioned(Foreign):
    """As libraries are that know no DLPack 1.0: they cannot say what may be written."""

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__(stream=stream)


def test_dlpack_of_an_older_version(cut, rng):
    x = exact(rng, "sum", "d", 100)
    y = distscan.scan(Unversioned(x[cut(100)]))
    np.testing.assert_array_equal(y.array, np.cumsum(x)[cut(100)])
    with pytest.raises(ValueError, match="as far as DLPack says; pass its NumPy array"):
        distscan.scan(x[cut(100)], out=Unversioned(x[cut(100)].copy()))


@pytest.mark.gpu
def test_dlpack_of_read_only_memory_on_a_gpu(cp):
    """CuPy takes it as if it may be written. An earlier call of the same kind changes nothing."""

    class Frozen(Exporter):
        is_read_only = False

        def __dlpack__(self, **options):
            export = exported_read_only if self.is_read_only else type(self.array).__dlpack__
            return export(self.array, **options)

    out = Frozen(cp.zeros(3))
    assert distscan.scan(cp.ones(3), out=out) is out
    out.is_read_only = True
    with pytest.raises(ValueError, match="out is read-only, as far as DLPack says"):
        distscan.scan(cp.ones(3), out=out)


@pytest.mark.parametrize("kind", [BufferError, RuntimeError, ValueError])
def test_memory_that_is_not_shared(kind):
    """PyTorch's answer for a tensor that requires a gradient."""

    class Tensor(Foreign):
        def __dlpack__(self, **options):
            raise kind("Can't export tensors that require gradient, use tensor.detach()")

    with pytest.raises(
        TypeError, match=r"x is a Tensor that does not share its memory: .*detach\(\)"
    ):
        distscan.scan(Tensor(np.zeros(3)))


def test_immutable_output():
    array = type("ArrayImpl", (Foreign,), {"__module__": "jaxlib._jax"})(np.zeros(3))
    with pytest.raises(ValueError, match="out is a ArrayImpl of JAX"):
        distscan.scan(np.zeros(3), out=array)


def test_library_found_by_its_module(monkeypatch, cut, rng):
    """PyTorch's tensors have no ``__array_namespace__``."""
    x = exact(rng, "sum", "d", 100)
    monkeypatch.setitem(sys.modules, "tensors", Library)
    tensor = type("Tensor", (Foreign,), {"__module__": "tensors.deep", "__array_namespace__": None})
    monkeypatch.delattr(Foreign, "__array_namespace__")
    del tensor.__array_namespace__
    derived = type("Image", (tensor,), {"__module__": __name__})
    for kind in (tensor, derived):
        y = distscan.scan(kind(x[cut(100)]))
        assert isinstance(y, Foreign)
        np.testing.assert_array_equal(y.array, np.cumsum(x)[cut(100)])


def test_nothing_is_copied_on_the_way_in():
    x = np.arange(10.0)
    for same in (x, x[::2], x[::-1]):
        assert arrays.as_native(same) is same
    assert np.shares_memory(arrays.as_native(Foreign(x)), x)


def test_flattened(xp, comm, rng):
    x = exact(rng, "sum", "l", 6 * comm.size).reshape(2 * comm.size, 3)
    mine = slice(2 * comm.rank, 2 * comm.rank + 2)
    y = distscan.scan(xp.asarray(x[mine]))
    want = np.cumsum(x)[6 * comm.rank :][:6]
    np.testing.assert_array_equal(y.get() if xp is not np else y, want)


@pytest.mark.parametrize("axis", [0, -1])
def test_the_only_axis(axis, cut, rng):
    x = exact(rng, "sum", "l", 50)
    np.testing.assert_array_equal(distscan.scan(x[cut(50)], axis=axis), np.cumsum(x)[cut(50)])


def test_strides_and_byte_order(cut, rng):
    x = exact(rng, "sum", "d", 40001)
    mine = cut(x.size)
    spread = np.zeros(2 * (mine.stop - mine.start))
    spread[::2] = x[mine]
    np.testing.assert_array_equal(distscan.scan(spread[::2]), np.cumsum(x)[mine])
    backwards = x[mine][::-1].copy()[::-1]
    np.testing.assert_array_equal(distscan.scan(backwards), np.cumsum(x)[mine])
    swapped = distscan.scan(x[mine].astype(">f8"))
    assert swapped.dtype == np.float64
    np.testing.assert_array_equal(swapped, np.cumsum(x)[mine])
    for strategy in ("scan-add", "reduce-scan"):
        out = np.zeros(mine.stop - mine.start, ">f8")
        np.testing.assert_array_equal(
            distscan.scan(x[mine], out=out, strategy=strategy), np.cumsum(x)[mine]
        )
    out = np.zeros(2 * (mine.stop - mine.start))
    distscan.scan(x[mine], out=out[1::2])
    np.testing.assert_array_equal(out[1::2], np.cumsum(x)[mine])
    assert not out[::2].any()


def test_dtype_in_another_byte_order(cut, rng):
    """As of an input that is in it: results are native, as in NumPy."""
    x = exact(rng, "sum", "d", 100).astype(">f4")
    y = distscan.cumsum(x[cut(100)], dtype=x.dtype)
    assert y.dtype == np.dtype("f") == np.cumsum(x, dtype=x.dtype).dtype
    np.testing.assert_array_equal(y, np.cumsum(x)[cut(100)])
    with pytest.raises(TypeError, match="does not accumulate in >i4, but in bool"):
        distscan.scan(x[cut(100)], "logical_or", dtype=">i4")


def test_read_only_input(cut, rng):
    x = exact(rng, "sum", "l", 99)
    x.flags.writeable = False
    np.testing.assert_array_equal(distscan.scan(x[cut(99)]), np.cumsum(x)[cut(99)])


@pytest.mark.parametrize("shift", [-3, -1, 1, 5])
def test_output_overlaps_input(shift, xp, cut, rng):
    """As in NumPy: the result is that of the input as it was."""
    x = exact(rng, "sum", "l", 50001)
    mine = cut(x.size)
    n = mine.stop - mine.start
    base = xp.zeros(n + 10, "l")
    base[5 : 5 + n] = xp.asarray(x[mine])
    out = base[5 + shift : 5 + shift + n]
    distscan.scan(base[5 : 5 + n], out=out)
    np.testing.assert_array_equal(out.get() if xp is not np else out, np.cumsum(x)[mine])


def test_same_memory_another_type(cut, rng):
    """In place over other bits: int64 in, float64 out, one buffer."""
    x = rng.integers(-9, 9, 40001)
    mine = cut(x.size)
    buffer = x[mine].copy()
    distscan.scan(buffer, out=buffer.view("d"))
    np.testing.assert_array_equal(buffer.view("d"), np.cumsum(x.astype("d"))[mine])
