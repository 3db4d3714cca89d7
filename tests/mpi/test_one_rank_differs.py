"""One rank alone passes something odd to a collective function: every rank raises, or none does."""

import inspect

import numpy as np
import pytest

import distscan
from distscan.mpi.agree import Agreement

# What calls need; a function with another argument needs a line here.
GOOD = {
    "a": np.full(3, 0.5),
    "b": np.arange(3.0),
    "count": 3,
    "dtype": "f8",
    "input": "in.npy",
    "mask": np.array([True, False, True]),
    "output": "out.npy",
    "parts": 2,
    "predicate": distscan.Predicate("positive", lambda x: x > 0),
    "shape": 3,
    "weights": np.ones(3),
    "x": np.arange(3.0),
}
SETTINGS = {"scan_file": {"backend": "cpu", "force": True}, "Plan": {"backend": "cpu"}}


def says(*methods):
    """A class of objects that raise in these methods."""

    def raises(*_):
        raise ValueError("an object that raises")

    return type("Raises", (), dict.fromkeys(methods, raises))


TEXT = "__str__", "__repr__", "__format__"
ODD = {
    "object": object(),
    "negative": -3,
    "name": "no-such-thing",
    "no-text": says(*TEXT)(),
    "nothing": says(
        *TEXT, "__bool__", "__eq__", "__hash__", "__array__", "__fspath__", "__len__"
    )(),
}


def functions():
    """The collective functions among the public names: those that take ``comm``."""
    for name in distscan.__all__:
        each = getattr(distscan, name)
        if not isinstance(each, type) or not issubclass(each, BaseException):
            parameters = inspect.signature(each).parameters
            if "comm" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                yield name, each


FUNCTIONS = dict(functions())


def parameters(name):
    """The parameters of a function, those included that it passes on to ``scan``."""
    all_of = dict(inspect.signature(FUNCTIONS[name]).parameters)
    if all_of.pop("options", None) is not None:
        all_of = inspect.signature(distscan.scan).parameters | all_of
        all_of.pop("op")
        if name != "fcumsum":
            all_of.pop("window")
    return {each: parameter for each, parameter in all_of.items() if each != "comm"}


def called(name, arguments):
    """Call a function, the positional arguments in their order; return what it has raised."""
    first = [
        each
        for each, parameter in inspect.signature(FUNCTIONS[name]).parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY and each in arguments
    ]
    options = {each: value for each, value in arguments.items() if each not in first}
    try:
        FUNCTIONS[name](*(arguments[each] for each in first), **options)
    except Exception as fault:
        return type(fault).__name__, str(fault)
    return None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_with_comm_is_collective(name):
    decorated = FUNCTIONS[name]
    function = decorated.__init__ if isinstance(decorated, type) else decorated
    public, inner = inspect.signature(function), inspect.signature(function.__wrapped__)
    assert [each.annotation for each in inner.parameters.values()].count(Agreement) == 1
    assert Agreement not in [each.annotation for each in public.parameters.values()]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_rank_differs(name, comm, folder, save, monkeypatch, rng):
    monkeypatch.chdir(folder)
    save("in.npy", GOOD["x"])
    needed = {each: GOOD[each] for each, p in parameters(name).items() if p.default is p.empty}
    good = needed | SETTINGS.get(name, {}) | ({"comm": comm} if name == "Plan" else {})
    cases = {
        f"{each}: {kind}": good | {each: value}
        for each in parameters(name)
        for kind, value in ODD.items()
    }
    cases["an unknown keyword"] = good | {"no_such_argument": 1}
    cases["nothing"] = {"comm": comm}
    for case, odd in cases.items():
        outcome = called(name, odd if comm.rank == rng.integers(comm.size) else good)
        outcomes = comm.allgather(outcome)
        assert outcomes == outcomes[:1] * comm.size, case
        if comm.size > 1 and case in {"output: name", "state: name", "trace: name"}:
            assert f"the ranks disagree on {case.partition(':')[0]}" in outcome[1]
        if case in {"an unknown keyword", "nothing"}:
            assert outcome[0] == "TypeError"
    assert called(name, good) is None
    y = distscan.scan(np.ones(3))
    np.testing.assert_array_equal(y, np.arange(1, 4) + 3 * comm.rank)
