"""A stress test: random scans in random conditions; every result is compared.

    python launch/tools/stress.py --minutes 5                        # one GPU
    launch/mpirun.sh 2 python launch/tools/stress.py --minutes 5     # several ranks
    python launch/tools/stress.py --backend cpu                      # no GPU

It looks for faults that happen only sometimes: scans on streams of every kind and in several
threads at once; plans that are dropped after their call, made on one stream and used on another, or
started on one stream and waited for on another; CUDA graphs that are replayed meanwhile. Another
process keeps the GPU busy. Forms, types and sizes, from 0 elements to about 2^24, are random.

NumPy alone computes the expected results, before the scans. Each output is filled with poison, then
scanned into, then compared on the stream of the scan, and once more at the end of the step. Ranks
make the same collective calls in the same order, between scans of their own.

The calls of a step depend only on the seed and the number of the step. A wrong result is printed
with the arguments that repeat its step. The exit status is 1 if a result was wrong or a call
raised. If a step takes more than a minute, the process prints the stacks of its threads, and ends.
"""

import argparse
import faulthandler
import gc
import itertools
import secrets
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import stress_device
from mpi4py import MPI
from stress_cases import Case, Data, draw_form

import distscan

HANG = 60  # seconds
WINDOW = 24  # cases that are in use at the same time; each step adds a new one
FORMS = 12  # forms in use at the same time: to compile one takes a second or more
COLLECTIVE, ALONE, IN_A_THREAD = 24, 24, 6  # calls of a step; IN_A_THREAD is for each thread
ROOM = 256 << 20  # bytes of a step's results, for collective and for other calls; graphs use more
SHOWN = 10  # the run ends after so many wrong results

# The kinds of uses, and how often they are drawn.
KINDS = {
    "scan": 3, "scan, new result": 2, "scan in place": 2, "plan dropped": 4, "plan kept": 3,
    "plan from elsewhere": 2, "start and wait": 2, "start here, wait there": 2,
}  # fmt: skip
GRAPHS = dict.fromkeys(
    ("graph", "graph, plan between", "graph beside its plan", "graph, plan dropped"), 1
)


# ---- the uses of a case: scans, plans and graphs -------------------------------------------


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
    inputs: Any = None  # for a graph: the arrays that it reads
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
        self.outcomes: list[tuple[int, Use, Any, Any, bool]] = []  # a number, arguments of check
        self.graphs: list[Any] = []  # and their plans

    def prepare(self, use: Use) -> None:
        """Allocate the arrays of a use; they live as long as the step."""
        device, (x, segments, want) = self.device, use.data[0]
        use.out = device.empty(want)
        device.poison(use.out)
        if use.kind == "scan in place":
            device.copy(x, use.out)
        elif use.kind in GRAPHS:
            use.spare = device.empty(want)
            use.inputs = device.put(x), device.put(segments)

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
        self.outcomes.append((number, use, got, want, last))

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
        with device.on(there if use.kind == "plan from elsewhere" else here):
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
        device, out, (x, segments), (here, there) = self.device, use.out, use.inputs, use.streams
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
        self.graphs.append(graph)
        if use.kind == "graph, plan dropped":
            del plan
            gc.collect()
            call_on(here, self.plan(use, "auto"))  # would get memory that was freed too early
        else:
            self.graphs.append(plan)
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


# ---- the test ------------------------------------------------------------------------------


class Stress:
    """One rank's part of the test."""

    def __init__(self, options: argparse.Namespace, device: Any) -> None:
        self.options, self.device, self.world = options, device, MPI.COMM_WORLD
        self.cases: dict[tuple[int, bool], tuple[Case, list[Data]]] = {}
        self.scans = Scans(device)
        self.uses, self.results, self.wrong = Counter[str](), Counter[str](), Counter[str]()
        self.several = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.faults: list[BaseException] = []
        self.seen = 0.0

    # ---- a step ----------------------------------------------------------------------------

    def step(self, number: int) -> None:
        """Draw a step's calls, make them, compare their results."""
        seed, world = self.options.seed, self.world
        common = np.random.default_rng([seed, 2, number])
        local = np.random.default_rng([seed, 3, number, world.rank])
        self.window = range(number, number + WINDOW)
        self.room = {True: ROOM, False: ROOM}
        self.scans.begin()
        for key in [key for key in self.cases if key[0] < number]:
            self.scans.plans.pop(self.cases.pop(key)[0], None)

        main = [self.draw(common, local, world) for _ in range(COLLECTIVE * (world.size > 1))]
        for _ in range(ALONE):
            place = int(local.integers(len(main) + 1))
            main.insert(place, self.draw(local, local, MPI.COMM_SELF))
        waves: list[list[list[Use]]] = [[], []]
        for wave in waves if self.several else []:
            for _ in range(local.integers(self.options.threads + 1)):
                wave.append(
                    [self.draw(local, local, MPI.COMM_SELF, True) for _ in range(IN_A_THREAD)]
                )
        for use in itertools.chain(main, *waves[0], *waves[1]):
            self.scans.prepare(use)
        self.device.settle()  # otherwise a stream could read data that another has not written yet

        # A thread of the second wave may get the identity of an ended thread whose work is queued.
        half = len(main) // 2
        for wave, uses in zip(waves, (main[:half], main[half:]), strict=True):
            threads = [threading.Thread(target=self.work, args=(uses,)) for uses in wave]
            for thread in threads:
                thread.start()
            for use in uses:
                self.perform(use)
            for thread in threads:
                thread.join()
            if self.faults:
                raise self.faults[0]
        self.device.settle()
        self.judge(number)

    def work(self, uses: list[Use]) -> None:
        """Run a thread's uses; the thread may end while its work is still queued."""
        try:
            with self.device.here():
                for use in uses:
                    self.perform(use)
        except BaseException as fault:
            self.faults.append(fault)

    def perform(self, use: Use) -> None:
        """Perform a use; if it raises, print the use."""
        self.alive()
        try:
            self.scans.perform(use)
        except BaseException:
            print(f"rank {self.world.rank}: raised by {use}", file=sys.stderr, flush=True)
            raise

    def alive(self) -> None:
        """Restart the timer that ends a process that hangs."""
        if time.monotonic() > self.seen + 1:
            self.seen = time.monotonic()
            faulthandler.dump_traceback_later(HANG, exit=True, file=sys.__stderr__)

    # ---- random choices --------------------------------------------------------------------

    def case(self, index: int, together: bool) -> tuple[Case, list[Data]]:
        """Return a case and its data on the device; without ``together`` each rank has its own."""
        key = index, together
        if key not in self.cases:
            self.alive()
            seed, world, number = self.options.seed, self.world, index // 64 + index % FORMS
            form = draw_form(np.random.default_rng([seed, 0, number]), world.size)
            case = Case(
                form,
                [seed, 1, index, 0 if together else world.rank + 1],
                self.options.largest,
                large=index % (WINDOW // 2) == 0,
                ranks=world.size if together else 1,
                rank=world.rank if together else 0,
            )
            self.cases[key] = case, [Data(*map(self.device.put, data)) for data in case.data]
        return self.cases[key]

    def draw(
        self,
        rng: np.random.Generator,
        local: np.random.Generator,
        comm: MPI.Intracomm,
        thread: bool = False,
    ) -> Use:
        """Draw a use: ``rng`` is the same on all ranks of ``comm``, ``local`` is this rank's."""
        together = comm is self.world
        index = int(rng.choice(self.window))
        case, data = self.case(index, together)
        if self.room[together] < case.nbytes:
            case, data = self.case(index - index % 2 + 1, together)  # odd cases are never large
        self.room[together] -= case.nbytes
        kinds = KINDS | (GRAPHS if self.device.captures and not together and not thread else {})
        kind = str(rng.choice([name for name, chances in kinds.items() for _ in range(chances)]))
        if case.form.recurrence:
            kind = "recurrence"
        elif kind == "scan in place" and not case.in_place:
            kind = "scan"
        elif kind == "plan kept" and thread:
            kind = "plan dropped"  # a plan belongs to one thread
        streams = self.device.captures if kind in GRAPHS else self.device.streams
        if kind in ("scan, new result", "recurrence"):
            # CuPy gives the memory of an ended thread's stream to the next thread.
            streams = [name for name in streams if name != "ptds"]
        first, second = map(str, local.choice(streams, 2))
        collect = bool(local.random() < 0.02)
        return Use(kind, case, data, comm, (first, second), int(rng.integers(1, 4)), collect)

    # ---- results ---------------------------------------------------------------------------

    def judge(self, number: int) -> None:
        """Count the step's results, and print the wrong ones."""
        for result, _, got, want, last in self.scans.outcomes:
            if last:
                self.device.compare(got, want, result, late=1)
        self.device.settle()
        at_once, late = self.device.wrong()
        uses = {id(use): use for _, use, *_ in self.scans.outcomes}
        self.uses.update(use.kind for use in uses.values())
        self.results.update(use.kind for _, use, *_ in self.scans.outcomes)
        for result, use, got, want, last in self.scans.outcomes:
            if at_once[result] or late[result]:
                self.wrong[use.kind] += 1
                where = f"{at_once[result]} bytes at once"
                if last:
                    differ = np.flatnonzero(self.device.host(got) != self.device.host(want))
                    where += f", {late[result]} at the end; elements {differ[:5]} of {want.size}"
                print(
                    f"rank {self.world.rank}: WRONG, {where}, in {use}\n    repeat it by "
                    f"launch/mpirun.sh {self.world.size} python launch/tools/stress.py --backend "
                    f"{self.device.name} --seed {self.options.seed} --first {number} --steps 1",
                    flush=True,
                )


# ---- the command line ----------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="stress.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, default=1, help="how long")
    add("--steps", type=int, help="how many steps, instead of how long")
    add("--seed", type=int, help="repeats a run; printed")
    add("--first", type=int, default=0, metavar="STEP", help="the step to begin with")
    add("--backend", choices=["auto", "cpu", "cuda"], default="auto")
    add("--threads", type=int, default=4, help="threads at once, besides the main one, at most")
    add("--largest", type=int, default=24, metavar="POWER", help="2^POWER elements at most")
    add("--no-neighbour", action="store_true", help="no other process keeps the GPU busy")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the test on every rank; return the exit status."""
    options, world = parse(arguments), MPI.COMM_WORLD
    seed = options.seed if options.seed is not None else secrets.randbelow(10**9)
    options.seed = world.bcast(seed)
    device = stress_device.choose(options.backend, neighbour=not options.no_neighbour)
    stress, begin = Stress(options, device), time.monotonic()
    if world.rank == 0:
        print(f"seed {options.seed}, {world.size} ranks, {device.name}", flush=True)
    try:
        spoken = begin
        for number in itertools.count(options.first):
            stress.step(number)
            counts = np.array([stress.wrong.total(), stress.results.total()])
            wrong, results = world.allreduce(counts)
            now = world.bcast(time.monotonic())
            if world.rank == 0 and now > spoken + 10:
                spoken = now
                text = f"{now - begin:.0f} s: step {number}, {results} results, {wrong} wrong"
                print(text, flush=True)
            enough = now > begin + options.minutes * 60
            if options.steps is not None:
                enough = number + 1 >= options.first + options.steps
            if enough or wrong >= SHOWN:
                break
    except BaseException:
        traceback.print_exc()
        text = f"rank {world.rank}: step {number} of seed {options.seed}"
        print(text, file=sys.stderr, flush=True)
        if world.size > 1:
            world.Abort(1)  # the other ranks wait for this one
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()
        device.close()
    counters = world.gather((stress.uses, stress.results, stress.wrong, stress.scans.refused))
    if counters is not None:
        print(table([sum(column, Counter()) for column in zip(*counters, strict=True)]))
        print(f"{results} results in {now - begin:.0f} s, {wrong} wrong", flush=True)
    return int(wrong > 0)


def table(counters: Sequence[Counter[str]]) -> str:
    """Return a table with a line for each kind: uses, results, wrong results, refused graphs."""
    lines = [f"{'':24}{'uses':>10}{'results':>10}{'wrong':>8}{'refused':>8}"]
    for kind in [*KINDS, "recurrence", *GRAPHS]:
        uses, results, wrong, refused = (counter[kind] for counter in counters)
        lines.append(f"{kind:24}{uses:10}{results:10}{wrong:8}{refused:8}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
