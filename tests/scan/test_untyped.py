"""Empty lists, which are float64 to NumPy, beside other ranks' arrays."""

import numpy as np
import pytest

import distscan
from distscan import DisagreementError
from support.host import host
from support.together import everywhere

HINT = r" of an empty list \(pass an empty array of the others' type and shape\)"
NAMES = ["scan", "cumsum", "cummax", "nancumsum", "cumulative_sum"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("empty", [[], ()])
@pytest.mark.parametrize("who", ["first", "last"])
def test_it_is_said_where_the_type_is_from(name, empty, who, comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    guilty = {"first": 0, "last": comm.size - 1}[who]
    x = empty if comm.rank == guilty else np.arange(3)
    # MPI has an operator of its own for the maximum of integers.
    said = rf"(dtype of x: .*rank {guilty}: float64|MPI form: .*rank {guilty}: False){HINT}"
    everywhere(comm, DisagreementError, said, lambda: getattr(distscan, name)(x))


def test_of_shapes_segments_and_a_first_element(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.size - 1
    x = [] if comm.rank == last else np.zeros((3, 2))
    everywhere(comm, DisagreementError, rf"shape beyond axis 0: .*rank {last}: \(\){HINT}",
               lambda: distscan.scan(x))  # fmt: skip
    x, keys = ([], []) if comm.rank == last else (np.zeros(3), np.zeros(3, int))
    everywhere(comm, DisagreementError, f"dtype of segments: .*rank {last}: float64{HINT}",
               lambda: distscan.scan(x, segments=keys))  # fmt: skip
    for guilty in (0, last):
        x = [] if comm.rank == guilty else np.arange(3)
        everywhere(comm, DisagreementError, f"dtype of x: .*rank {guilty}: float64{HINT}",
                   lambda x=x: distscan.cumulative_sum(x, include_initial=True))  # fmt: skip


def test_beside_float64_it_is_as_good_as_an_array(xp, strategy, comm, rng):
    x = rng.integers(-9, 9, 8 * comm.size).astype(float)
    mine, empty = slice(8 * comm.rank, 8 * comm.rank + 8), comm.size // 2
    x[8 * empty : 8 * empty + 8] = 0
    shard = [] if comm.rank == empty else xp.asarray(x[mine])
    y = host(distscan.scan(shard, strategy=strategy))
    np.testing.assert_array_equal(y, np.cumsum(x)[mine][: len(y)])
    assert len(y) == len(shard)


def test_another_disagreement_is_not_its(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.rank == comm.size - 1
    for options, what in (({"op": "max"}, "op"), ({"exclusive": True}, "exclusive")):
        arguments = {"x": []} if last else {"x": np.zeros(3), **options}
        text = everywhere(comm, DisagreementError, f"disagree on {what}: ",
                          lambda given=arguments: distscan.scan(**given))  # fmt: skip
        assert "list" not in text
