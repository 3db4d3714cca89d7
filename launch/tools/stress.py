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
import itertools
import secrets
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import stress_device
from mpi4py import MPI
from stress_cases import Case, Data, draw_form
from stress_uses import GRAPHS, KINDS, Scans, Use

HANG = 60  # seconds
WINDOW = 24  # cases that are in use at the same time; each step adds a new one
FORMS = 12  # forms in use at the same time: to compile one takes a second or more
COLLECTIVE, ALONE, IN_A_THREAD = 24, 24, 6  # calls of a step; IN_A_THREAD is for each thread
ROOM = 256 << 20  # bytes of a step's results, for collective and for other calls; graphs use more
SHOWN = 10  # the run ends after so many wrong results


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
        mine = np.random.default_rng([seed, 3, number, world.rank])
        self.window = range(number, number + WINDOW)
        self.room = {True: ROOM, False: ROOM}
        self.scans.begin()
        for key in [key for key in self.cases if key[0] < number]:
            self.scans.plans.pop(self.cases.pop(key)[0], None)

        main = [self.draw(common, mine, world) for _ in range(COLLECTIVE * (world.size > 1))]
        for _ in range(ALONE):
            place = int(mine.integers(len(main) + 1))
            main.insert(place, self.draw(mine, mine, MPI.COMM_SELF))
        waves: list[list[list[Use]]] = [[], []]
        for wave in waves if self.several else []:
            for _ in range(mine.integers(self.options.threads + 1)):
                own = (
                    self.draw(mine, mine, MPI.COMM_SELF, thread=True) for _ in range(IN_A_THREAD)
                )
                wave.append(list(own))
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
        mine: np.random.Generator,
        comm: MPI.Intracomm,
        thread: bool = False,
    ) -> Use:
        """Draw a use: ``rng`` is the same on all ranks of ``comm``, ``mine`` is this rank's own."""
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
        first, second = map(str, mine.choice(streams, 2))
        collect = bool(mine.random() < 0.02)
        return Use(kind, case, data, comm, (first, second), int(rng.integers(1, 4)), collect)

    # ---- results ---------------------------------------------------------------------------

    def judge(self, number: int) -> None:
        """Count the step's results, and print the wrong ones."""
        for result, _, got, want, last in self.scans.found:
            if last:
                self.device.compare(got, want, result, late=1)
        self.device.settle()
        at_once, late = self.device.wrong()
        self.uses.update(
            Counter(use.kind for use in {id(f[1]): f[1] for f in self.scans.found}.values())
        )
        self.results.update(use.kind for _, use, *_ in self.scans.found)
        for result, use, got, want, last in self.scans.found:
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
    options.seed = world.bcast(
        options.seed if options.seed is not None else secrets.randbelow(10**9)
    )
    device = stress_device.choose(options.backend, neighbour=not options.no_neighbour)
    stress, begin = Stress(options, device), time.monotonic()
    if world.rank == 0:
        print(f"seed {options.seed}, {world.size} ranks, {device.name}", flush=True)
    try:
        spoken = begin
        for number in itertools.count(options.first):
            stress.step(number)
            wrong, results = world.allreduce(
                np.array([stress.wrong.total(), stress.results.total()])
            )
            now = world.bcast(time.monotonic())
            if world.rank == 0 and now > spoken + 10:
                spoken = now
                print(
                    f"{now - begin:.0f} s: step {number}, {results} results, {wrong} wrong",
                    flush=True,
                )
            enough = now > begin + options.minutes * 60
            if options.steps is not None:
                enough = number + 1 >= options.first + options.steps
            if enough or wrong >= SHOWN:
                break
    except BaseException:
        traceback.print_exc()
        print(
            f"rank {world.rank}: step {number} of seed {options.seed}", file=sys.stderr, flush=True
        )
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
