"""Arrays in buffers, scanned by all ranks; and places that are not inside a buffer."""

import numpy as np
import pytest

from distscan.binding import bind
from distscan.core.errors import InputError
from distscan.service import arrays
from distscan.service.arrays import Place, Scanner, Task
from support import buffers

SHAPES = [((1,), None), ((10007,), None), ((503, 7), None), ((503, 7), 0), ((40, 11, 9), 1)]
MOST = (1 << 63) - 1
FORMS = [{}, {"exclusive": True, "initial": "3"}, {"reverse": True}]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def scanner(request, comm):
    return Scanner(comm, bind(comm, request.param, lambda message: None))


@pytest.fixture
def put(folder, comm):
    """Put an array into a buffer."""
    made = []

    def put(name, x):
        if comm.rank == 0:
            made.append(buffers.put(folder / name, x)[0])
        comm.Barrier()
        return Place(str(folder / name), 0, str(x.dtype), x.shape)

    yield put
    comm.Barrier()
    for buffer in made:
        buffer.close()


def wanted(x, axis, form):
    """NumPy's scan of integers."""
    x = x.ravel() if axis is None else x
    axis = axis or 0
    y = np.flip(np.flip(x, axis).cumsum(axis), axis) if form.get("reverse") else x.cumsum(axis)
    return y + int(form.get("initial", 0)) - (x if form.get("exclusive") else 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_by_all_ranks(shape, axis, form, scanner, put, folder, comm, rng):
    x = rng.integers(-1000, 1000, shape)
    right = wanted(x, axis, form)
    task = Task(put("x", x), put("y", np.full_like(right, -7)), None, {"axis": axis} | form)
    scanner.together(task)
    comm.Barrier()
    np.testing.assert_array_equal(np.fromfile(folder / "y", int).reshape(right.shape), right)


@pytest.mark.parametrize("keys", [False, True])
def test_segments_by_all_ranks(keys, scanner, put, folder, comm, rng):
    x, heads = rng.integers(-1000, 1000, 10007), rng.random(10007) < 0.01
    heads[0] = True
    numbers = heads.cumsum()
    sums = x.cumsum()
    right = sums - (sums - x)[heads][numbers - 1]
    segments = put("s", numbers if keys else heads)
    scanner.together(Task(put("x", x), put("y", np.full_like(x, -7)), segments, {}))
    comm.Barrier()
    np.testing.assert_array_equal(np.fromfile(folder / "y", int), right)


def test_every_rank_raises(scanner, put):
    x = np.arange(10.0)
    with pytest.raises(TypeError, match="bitwise_or"):
        scanner.together(Task(put("x", x), put("y", x), None, {"op": "bitwise_or"}))


@pytest.mark.parametrize(
    ("offset", "dtype", "shape"),
    [(8, "f8", (10,)), (0, "f8", (11,)), (0, "f8", (1 << 40, 1 << 40)), (81, "f8", (0,)),
     (0, "f8", (1,) * 65), (0, "?", (MOST,)), (80, "?", (MOST - 79,)), (MOST, "?", (MOST,)),
     (MOST, "i1", (1,)), (0, "f8", (1 << 60,)), (0, "f8", (1 << 60, 0)), (0, "?", (MOST, 2, 0)),
     (0, "?", (MOST + 1,)), (0, "?", (10**30, 0))],
)  # fmt: skip
def test_places_that_are_outside(offset, dtype, shape, scanner, put):
    """Also if the sum of offset and bytes is more than 63 bits."""
    place = put("x", np.arange(10.0))
    with pytest.raises(InputError, match=r"not inside its buffer|too many bytes"):
        scanner.maps.array(Place(place.path, offset, dtype, shape))


@pytest.mark.parametrize(
    ("dtype", "shape"), [("O", (1,)), ("i4,O", (1,)), ("V0", (3,)), ("S0", (0,)), ("i8", (-1,))]
)
def test_arrays_that_cannot_be_sent(dtype, shape, scanner, put):
    """Objects' addresses would be the client's; NumPy divides by the bytes of an element."""
    place = put("x", np.arange(10.0))
    with pytest.raises(InputError, match="can be sent"):
        scanner.maps.array(Place(place.path, 0, dtype, shape))


def test_a_file_that_could_become_shorter(scanner, folder, comm):
    """It is not mapped: a rank that reads what is no longer there ends by SIGBUS."""
    if comm.rank == 0:
        np.arange(10.0).tofile(folder / "x")
    comm.Barrier()
    with pytest.raises(InputError, match="is no buffer"):
        scanner.maps.array(Place(str(folder / "x"), 0, "f8", (10,)))


@pytest.mark.parametrize("descr", ["[]", "'<i8'", "'|V0'", "'|O'"])
@pytest.mark.parametrize("shape", ["(-1,)", "(2,-1)", "(-1,-1)"])
def test_headers_that_no_array_has(shape, descr):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)
    with pytest.raises(InputError, match="is not a"):
        arrays.parse(memoryview(body))
