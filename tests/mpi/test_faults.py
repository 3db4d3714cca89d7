"""Every rank raises, or none does; nothing hangs, and the ranks can go on together afterwards."""

import inspect
from itertools import cycle

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import DisagreementError, RankError
from distscan.core.operators import MAPS
from distscan.mpi.agree import Agreement, agreed
from support import processes
from support.processes import everywhere

# ---- every rank raises, or none does; nothing hangs, and the ranks can go on together afterwards -


@pytest.fixture(autouse=True)
def still_together(comm):
    """After every fault the ranks are in step: the next scan is right."""
    yield
    x = np.arange(5) + comm.rank
    whole = np.concatenate(comm.allgather(x))
    mine = slice(5 * comm.rank, 5 * comm.rank + 5)
    np.testing.assert_array_equal(distscan.scan(x), np.cumsum(whole)[mine])


BAD = {
    "None": (TypeError, "x is None", lambda: {"x": None}),
    "objects": (TypeError, "x is object", lambda: {"x": np.array([{}, []], object)}),
    "strings": (TypeError, "x is <U1", lambda: {"x": np.array(["a"])}),
    "dates": (TypeError, "'sum' does not take datetime64", lambda: {"x": np.zeros(3, "M8[s]")}),
    "records": (TypeError, "x is ", lambda: {"x": np.zeros(3, [("a", "i4")])}),
    "masked": (TypeError, "masked", lambda: {"x": np.ma.masked_array([1, 2], [0, 1])}),
    "axis": (np.exceptions.AxisError, "axis 1 is out of bounds", lambda: {"axis": 1}),
    "axis a word": (TypeError, "axis must be an integer or None, not a str",
                    lambda: {"axis": "first"}),
    "axis a tuple": (TypeError, "axis must be an integer or None, not a tuple",
                     lambda: {"x": np.zeros((2, 2)), "axis": (0, 1)}),
    "axis a bool": (TypeError, "axis must be an integer or None, not a bool",
                    lambda: {"x": np.zeros((2, 2)), "axis": True}),
    "axis a bool of NumPy": (TypeError, "axis must be an integer or None, not a bool",
                             lambda: {"axis": np.False_}),
    "out length": (ValueError, "out has shape", lambda: {"out": np.zeros(7)}),
    "out shape": (ValueError, "out has shape", lambda: {"out": np.zeros((1, 3))}),
    "out a list": (TypeError, "out must be an array, not list", lambda: {"out": [0, 0, 0]}),
    "out read-only": (ValueError, "read-only", lambda: {"out": readonly()}),
    "dtype": (TypeError, "dtype is <U", lambda: {"dtype": "U3"}),
    "no dtype": (TypeError, "nonsense", lambda: {"dtype": "nonsense"}),
    "op": (ValueError, "unknown operator 'mean'", lambda: {"op": "mean"}),
    "op type": (TypeError, "op must be", lambda: {"op": 3}),
    "ufunc": (ValueError, "ufunc 'sin' takes 1 operand", lambda: {"op": np.sin}),
    "op on floats": (TypeError, "'bitwise_or' does not take float64", lambda: {"op": MPI.BOR}),
    "op in a type": (TypeError, "'logical_and' does not accumulate in int32, but in bool",
                     lambda: {"op": np.logical_and, "dtype": "i"}),
    "op on complex": (TypeError, "'logaddexp' does not take complex128",
                      lambda: {"op": "logaddexp", "x": np.zeros(3, "D")}),
    "strategy": (ValueError, "unknown strategy", lambda: {"strategy": "fast"}),
}  # fmt: skip


def readonly():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(("case", "who"), list(zip(BAD, cycle(["first", "last", "every"]))))
def test_bad_arguments(case, who, comm):
    kind, message, make = BAD[case]
    guilty = {"first": [0], "last": [comm.size - 1], "every": list(range(comm.size))}[who]
    arguments = {"x": np.zeros(3)} | (make() if comm.rank in guilty else {})
    text = everywhere(comm, kind, message, lambda: distscan.scan(**arguments))
    if comm.size > 1:
        named = "every rank" if len(guilty) == comm.size else f"rank {guilty[0]}"
        assert text.startswith(f"{named}: ")


def combine(a, b):
    return a + b


USERS = MPI.Op.Create(lambda a, b, datatype: None)
MESSAGES = {
    "MAXLOC": ("op is MPI.MAXLOC; of MPI's ops a scan takes SUM, .*with arity=2$",
               lambda: distscan.scan([1.0], MPI.MAXLOC)),
    "REPLACE": ("op is MPI.REPLACE; of MPI's ops a scan takes .* LXOR$",
                lambda: distscan.Plan(None, 3, "d", MPI.REPLACE, backend="cpu")),
    "an op of the user": ("an MPI op of your own, .*; wrap a function .* in distscan.Operator",
                          lambda: distscan.scan([1.0], USERS)),
    "a function": ("not the function combine; wrap a function .* in distscan.Operator",
                   lambda: distscan.scan([1.0], combine)),
    "partition": ("parts must be an integer of at least 1, not 1.5",
                  lambda: distscan.partition([1, 2], 1.5)),
    "partition into 0": ("parts must be an integer of at least 1, not 0",
                         lambda: distscan.partition([1, 2], 0)),
    "Plan": ("shape must be an integer of at least 0, not 1.5",
             lambda: distscan.Plan(None, 1.5, "d")),
    "a shape": ("each length of shape must be an integer of at least 0, not -1",
                lambda: distscan.Plan(None, (3, -1), "d")),
    "cumsum": (r"cumsum\(\) got an unexpected keyword argument 'foo'",
               lambda: distscan.cumsum([1], foo=1)),
    "cumsum of an op": (r"cumsum\(\) got an unexpected keyword argument 'op'",
                        lambda: distscan.cumsum([1], op="max")),
    "memory": ("memory must be an integer of at least 1, not -3",
               lambda: distscan.scan_file("x.npy", "y.npy", memory=-3)),
    "memory as text": ("memory must be an integer of at least 1, not '1G'",
                       lambda: distscan.scan_file("x.npy", "y.npy", memory="1G")),
    "input": ("input must be a path, or several, not int", lambda: distscan.scan_file(3, "y.npy")),
    "inputs": ("input must be a path, not int", lambda: distscan.scan_file([3], "y.npy")),
    "no input": ("input is empty", lambda: distscan.scan_file([], "y.npy")),
    "state": ("state must be a path, not int",
              lambda: distscan.scan_file("x.npy", "y.npy", state=3)),
    "integers": ("initial has 9223372036854775808, which is out of bounds for int64",
                 lambda: distscan.scan(np.ones(3, np.int64), initial=2**63)),
}  # fmt: skip


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_name_the_argument(case, comm):
    message, call = MESSAGES[case]
    everywhere(comm, (TypeError, ValueError, OverflowError, distscan.InputError), message, call)


def test_ranks_that_call_different_functions(comm, folder, save, monkeypatch):
    """A file job among them: the message has what each rank has called."""
    if comm.size == 1:
        pytest.skip("one rank calls one function")
    monkeypatch.chdir(folder)
    save("x.npy", np.arange(3.0))
    calls = lambda: distscan.scan([1.0]), lambda: distscan.scan_file("x.npy", "y.npy")
    for first in (0, 1):
        call = calls[first if comm.rank == 0 else 1 - first]
        text = everywhere(comm, DisagreementError, "disagree on the function", call)
        names = ["scan", "scan_file"][:: -1 if first else 1]
        assert f"rank 0: {names[0]}; " in text
        assert text.endswith(f": {names[1]}")


def test_structures_are_compared_in_full(comm):
    """Not as NumPy prints them, to 8 digits."""
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    x = np.zeros(3), np.zeros(3)
    everywhere(comm, DisagreementError, "the ranks disagree on initial",
               lambda: distscan.scan(x, MAPS, initial=(1, 1 / 3 + 1e-12 * comm.rank)))  # fmt: skip


def test_single_pass_is_for_one_rank(comm):
    if comm.size == 1:
        np.testing.assert_array_equal(distscan.scan([1, 2], strategy="single-pass"), [1, 3])
        return
    everywhere(comm, ValueError, "one rank, not .*'reduce-scan'",
               lambda: distscan.scan(np.zeros(3), strategy="single-pass"))  # fmt: skip


def test_disagreement(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.rank == comm.size - 1
    for ours, theirs, what in (
        ({"x": np.zeros(3)}, {"x": np.zeros(3, "f")}, "dtype of x"),
        ({"x": np.zeros(3), "op": "sum"}, {"x": np.zeros(3), "op": "max"}, "on op"),
        ({"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}, "shape beyond axis 0"),
        ({"x": np.zeros(3)}, {"x": np.zeros(3), "dtype": "f"}, "accumulating dtype"),
    ):
        arguments = theirs if last else ours
        text = everywhere(comm, DisagreementError, what, lambda a=arguments: distscan.scan(**a))
        assert f"rank {comm.size - 1}: " in text


def test_memory(comm, monkeypatch):
    """One rank runs out of memory before the exchange, or during the scan itself."""
    from distscan.cpu import steps as cpu

    def full(*_, **__):
        raise MemoryError("no room for 8 elements")

    every = [("scan-add", cpu.ScanAdd), ("reduce-scan", cpu.ReduceScan)]
    if comm.size == 1:
        every.append(("single-pass", cpu.SinglePass))
    for strategy, steps in every:
        for method in ("empty", "begin", "finish"):
            with monkeypatch.context() as patch:
                if comm.rank == comm.size - 1:
                    patch.setattr(steps, method, full)
                everywhere(comm, MemoryError, "no room",
                           lambda s=strategy: distscan.scan(np.zeros(8), strategy=s))  # fmt: skip


@pytest.mark.parametrize("op", ["sum", "max"])  # by MPI's operator, and by the NumPy form
@pytest.mark.parametrize("who", ["first", "last"])
def test_a_total_that_never_comes(who, op, comm, monkeypatch):
    """A GPU that fails after it was launched: the rank learns of it inside the exchange."""
    from distscan import KernelError
    from distscan.cpu import steps as cpu
    from support.steps import Known

    class Lost(Known):
        def total(self, piece=None):
            raise KernelError("a kernel ended without its word")

    if comm.size == 1:
        pytest.skip("one rank reads no total")
    if comm.rank == {"first": 0, "last": comm.size - 1}[who]:
        monkeypatch.setattr(cpu.ReduceScan, "begin", lambda *_, **__: Lost(np.ones(())))
    lost = {"first": 0, "last": comm.size - 1}[who]
    for reverse in (False, True):
        text = everywhere(comm, KernelError, "without its word",
                          lambda r=reverse: distscan.scan(np.zeros(8), op, reverse=r,
                                                          strategy="reduce-scan"))  # fmt: skip
        assert text.startswith(f"rank {lost}: ")
    # A plan's call raises there, and behind it.
    plan = distscan.Plan(comm, 8, "d", op, strategy="reduce-scan", backend="cpu")
    if comm.rank >= lost:
        kind = KernelError if comm.rank == lost else RankError
        with pytest.raises(kind, match=r"without its word|an earlier rank failed"):
            plan(np.ones(8))
    else:
        want = 8 * comm.rank + np.arange(1, 9) if op == "sum" else np.ones(8)
        np.testing.assert_array_equal(plan(np.ones(8)), want)


def test_operator_that_fails(comm):
    """An exception inside the exchange itself, where MPI calls Python."""
    if comm.size < 3:
        pytest.skip("two ranks have no totals to combine")

    def combine(a, b):
        if np.ndim(b) == 0:
            raise ZeroDivisionError("totals do not combine")
        return b

    op = distscan.Operator("fails", combine, "b", lambda dtype: dtype.type(0))
    everywhere(comm, ZeroDivisionError, "totals", lambda: distscan.scan(np.arange(3), op))


def interrupt(*_):
    raise KeyboardInterrupt


def interrupted_total(a, b):
    return interrupt() if np.ndim(b) == 0 else b


@pytest.mark.parametrize("combine", [interrupted_total, np.add])
def test_interrupted_in_the_exchange(combine, comm):
    """Ctrl-C inside MPI's call of Python, or as an empty shard's identity is made."""
    inside = combine is interrupted_total
    if comm.size < 2 + inside:
        pytest.skip("one rank exchanges nothing, two have no totals to combine")
    mpi = {} if inside else {"mpi": "SUM", "mpi_kinds": "i"}
    op = distscan.Operator("interrupted", combine, identity=interrupt, **mpi)
    x = np.arange(3 if inside or comm.rank < comm.size - 1 else 0)
    with pytest.raises((KeyboardInterrupt, RuntimeError)) as caught:
        distscan.scan(x, op)
    assert KeyboardInterrupt in comm.allgather(caught.type)


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("kind", "identity", "combine"),
    [
        (ZeroDivisionError, lambda dtype: 1 // 0, np.add),
        (Exception, lambda dtype: dtype.type(0), lambda a, b: (_ for _ in ()).throw(Unprintable())),
        (ValueError, lambda dtype: dtype.type(0), lambda a, b: np.zeros(7)),
    ],
)
def test_operators_that_break(kind, identity, combine, comm):
    """In the identity, in an exception that cannot be printed, in a result of another shape."""
    op = distscan.Operator("broken", combine, "b", identity, mpi="SUM", mpi_kinds="i")
    if kind is ZeroDivisionError and comm.size == 1:
        pytest.skip("one rank needs no identity")
    x = np.arange(0 if comm.rank == comm.size - 1 and comm.size > 1 else 9)
    for strategy in ("scan-add", "reduce-scan"):
        with pytest.raises(kind):
            distscan.scan(x, op, strategy=strategy)


def test_communicators_that_cannot_be(comm):
    distscan.scan(np.zeros(3))  # so that the communicator is known
    for wrong, kind in ((5, "int"), (comm.handle, "int"), ([comm], "list")):
        with pytest.raises(TypeError, match=f"intracommunicator .*, not {kind}"):
            distscan.scan(np.zeros(3), comm=wrong)
    with pytest.raises(ValueError, match="COMM_NULL"):
        distscan.scan(np.zeros(3), comm=MPI.COMM_NULL)


@pytest.mark.one_rank
def test_another_launcher():
    """Started as 8 by a launcher this MPI does not know: not 8 scans of one rank."""
    program = "import distscan; distscan.scan([1.0])"
    done = processes.python(program, PALS_NRANKS="8")
    assert "started 8 ranks but MPI sees 1" in done.stderr


def fail(comm, fault):
    """Agree with the other ranks on this rank's fault, or None."""
    with agreed(comm):
        if fault is not None:
            raise fault


def test_messages_name_the_ranks_at_fault(comm):
    if comm.size == 1:
        pytest.skip("one rank is every rank")
    last = comm.size - 1
    behind = "rank 1: a" if last == 1 else f"ranks 1-{last}: a"
    many = "; ".join(f"rank {r}: {r}" for r in range(min(comm.size, 4)))
    if comm.size > 4:
        many += f"; and {comm.size - 4} more faults"
    for message, text in (
        (lambda rank: "a", "every rank: a"),
        (lambda rank: "a" if rank else None, behind),
        (lambda rank: "a" if rank else "b", f"rank 0: b; {behind}"),
        (str, many),
    ):
        said = message(comm.rank)
        with pytest.raises(ValueError, match=f"^{text}$"):
            fail(comm, None if said is None else ValueError(said))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (MemoryError("x"), MemoryError),
        (np.exceptions.AxisError(3, 1), np.exceptions.AxisError),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), UnicodeError),
        (type("Local", (OSError,), {})("gone"), OSError),
        (KeyError("k"), LookupError),
    ],
)
def test_exceptions_travel_as_what_every_rank_knows(fault, kind, comm):
    if comm.size == 1:
        pytest.skip("one rank raises what it has")
    with pytest.raises(kind) as caught:
        fail(comm, fault if comm.rank == comm.size - 1 else None)
    assert type(caught.value) is kind
    assert str(caught.value) == str(kind(f"rank {comm.size - 1}: {fault}"))


# ---- one rank alone passes something odd to a collective function: every rank raises, or none does

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
