"""The uses of a case in launch/tools/stress.py: scans, plans and graphs."""

import gc
import itertools
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from mpi4py import MPI
from stress_cases import Case, Data

import distscan

# The kinds of uses, and how often they are drawn.
KINDS = {
    "scan": 3, "scan, new result": 2, "scan in place": 2, "plan dropped": 4, "plan kept": 3,
    "plan made elsewhere": 2, "start and wait": 2, "start here, wait there": 2,
}  # fmt: skip
GRAPHS = {
    "graph": 1,
    "graph, plan between": 1,
    "graph beside its plan": 1,
    "graph, plan dropped": 1,
}


@dataclass
class Use:
    """One use of a case."""

    kind: str
    case: Case
    data: list[Data]  # on the device
    comm: MPI.Intracomm
    streams: tuple[str, str]
    times: int
    collect: bool  # whether to collect garbage after it
    out: Any = None
    given: Any = None  # for a graph: the arrays that it reads
    spare: Any = None  # for a graph: a second result

    def __repr__(self) -> str:
        where = "the rank's own" if self.comm == MPI.COMM_SELF else "of all ranks"
        return f"{self.kind!r}, {where}, on streams {self.streams}, {self.times} times, {self.case}"


class Scans:
    """One rank's uses in a step, and the results that it compares."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.plans: dict[Case, Any] = {}  # the plans that are kept, for the main thread
        self.refused = Counter[str]()
        self.begin()

    def begin(self) -> None:
        """Begin a step; free the objects of the last step, whose work has ended."""
        self.numbers = itertools.count()
        self.found: list[tuple[int, Use, Any, Any, bool]] = []  # a number, arguments of check
        self.held: list[Any] = []

    def prepare(self, use: Use) -> None:
        """Allocate the arrays of a use; they live as long as the step."""
        device, (x, segments, want) = self.device, use.data[0]
        use.out = device.empty(want)
        device.poison(use.out)
        if use.kind == "scan in place":
            device.copy(x, use.out)
        elif use.kind in GRAPHS:
            use.spare = device.empty(want)
            use.given = device.put(x), device.put(segments)

    def perform(self, use: Use) -> None:
        """Perform a use."""
        if use.case.form.recurrence:
            self.recur(use)
        elif use.kind in GRAPHS:
            self.replay(use)
        elif use.kind.startswith("scan"):
            self.scan(use)
        else:
            self.use_plan(use)
        if use.collect:
            gc.collect()

    def check(self, use: Use, got: Any, want: Any, *, last: bool = True) -> None:
        """Compare on the current stream; if ``last``, compare once more at the step's end."""
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            raise TypeError(f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}")
        number = next(self.numbers)
        self.device.compare(got, want, number)
        self.found.append((number, use, got, want, last))

    def recur(self, use: Use) -> None:
        """Run a linear recurrence, and check it."""
        (x, factors, want), form = use.data[-1], use.case.form
        with self.device.on(use.streams[0]):
            y = distscan.linear_recurrence(
                factors, x, form.initial, comm=use.comm, reverse=form.reverse
            )
            self.check(use, y, want)

    def scan(self, use: Use) -> None:
        """Scan as often as the use says, and check each result."""
        (x, segments, want), form, out = use.data[0], use.case.form, use.out
        new, in_place = use.kind.endswith("new result"), use.kind.endswith("in place")
        with self.device.on(use.streams[0]):
            for time_ in range(use.times):
                if in_place and time_ > 0:
                    self.device.copy(x, out)
                elif not in_place:
                    # A new result usually gets the memory that is poisoned here.
                    self.device.poison(self.device.empty(want) if new else out)
                y = distscan.scan(
                    out if in_place else x,
                    form.operator,
                    comm=use.comm,
                    axis=form.axis,
                    exclusive=form.exclusive,
                    initial=form.initial,
                    reverse=form.reverse,
                    dtype=form.out,
                    out=None if new else out,
                    segments=segments,
                    strategy=form.strategy,
                )
                self.check(use, y, want, last=new or time_ == use.times - 1)

    def plan(self, use: Use, strategy: str | None = None) -> Any:
        """Make the plan of a use."""
        case, form = use.case, use.case.form
        return distscan.Plan(
            use.comm,
            case.shape,
            form.x,
            form.operator,
            axis=form.axis,
            exclusive=form.exclusive,
            initial=form.initial,
            reverse=form.reverse,
            out_dtype=form.out,
            segments=form.segments_dtype,
            strategy=strategy or form.strategy,
            backend=self.device.name,
        )

    def use_plan(self, use: Use) -> None:
        """Run a plan, new or kept, and check each result."""
        device, (x, segments, want), out = self.device, use.data[0], use.out
        here, there = use.streams
        with device.on(there if use.kind == "plan made elsewhere" else here):
            if use.kind == "plan kept":
                plan = self.plans.get(use.case) or self.plans.setdefault(use.case, self.plan(use))
            else:
                plan = self.plan(use)
        if use.kind.startswith("start"):
            with device.on(here):
                plan.start(x, out, segments)
            if use.comm == MPI.COMM_WORLD and use.times > 1:
                use.comm.Barrier()
            with device.on(there if use.kind.endswith("there") else here):
                plan.wait()
                self.check(use, out, want)
        else:
            with device.on(here):
                for time_ in range(use.times):
                    device.poison(out)
                    plan(x, out, segments)
                    self.check(use, out, want, last=time_ == use.times - 1)

    def replay(self, use: Use) -> None:
        """Capture a plan's call, and replay it with new data."""
        device, out, (x, segments), (here, there) = self.device, use.out, use.given, use.streams
        first, replays = use.data[0], 4 * use.times
        there = there if use.kind.endswith("beside its plan") else here

        def call_on(stream: str, plan: Any) -> None:
            with device.on(stream):
                device.poison(use.spare)
                plan(first.x, use.spare, first.segments)
                self.check(use, use.spare, first.want, last=False)

        plan = self.plan(use, "auto")
        with device.on(here):
            plan(x, out, segments)  # the first call loads and allocates: it cannot be captured
            self.check(use, out, first.want, last=False)
            graph = device.capture(partial(plan, x, out, segments))
        if graph is None:
            self.refused[use.kind] += 1
            return
        self.held.append(graph)
        if use.kind == "graph, plan dropped":
            del plan
            gc.collect()
            call_on(here, self.plan(use, "auto"))  # would get memory that was freed too early
        else:
            self.held.append(plan)
        for replay in range(replays):
            data = use.data[replay % len(use.data)]
            with device.on(here):
                device.copy(data.x, x)
                device.copy(data.segments, segments)
                device.poison(out)
                graph.launch()
                self.check(use, out, data.want, last=replay == replays - 1)
            if use.kind in ("graph, plan between", "graph beside its plan"):
                call_on(there, plan)
