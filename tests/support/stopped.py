"""Jobs in chunks of ten elements, which stop at any of them, and go on with --resume."""

import json
from itertools import count

import numpy as np
from mpi4py import MPI

from distscan.job import job, plan, shard
from support.maps import maps
from support.together import left
from support.words import digits
from support.writers import spoil

RANKS = MPI.COMM_WORLD.size
CHUNK = 10  # elements
MANY = RANKS * 8 * CHUNK + 3  # the last chunk is shorter
LINES = RANKS * 2 + 1
COMPOSE = ["--op", "support.maps:COMPOSE"]
PRINTS = ["--op", "support.words:FINGERPRINTS"]


def floats(*shape):
    return lambda rng: rng.normal(size=shape)


def ordered(*shape):
    return lambda rng: maps(rng, int(np.prod(shape))).reshape(shape)


# The elements, and the options: maps and fingerprints do not commute, floats are rounded.
FORMS = {
    "flat": (floats(MANY), []),
    "one": (floats(1), []),  # most ranks have nothing
    "exclusive": (ordered(MANY), [*COMPOSE, "--exclusive"]),
    "reverse": (ordered(MANY), [*COMPOSE, "--reverse"]),
    "initial": (floats(MANY), ["--initial", "0.1", "--exclusive", "--reverse"]),
    "scan-add": (floats(MANY), ["--strategy", "scan-add"]),
    "reduce-scan": (ordered(MANY), [*COMPOSE, "--strategy", "reduce-scan"]),
    "axis-0": (floats(LINES * 3, 7), ["--axis", "0"]),
    "axis-0-reverse": (ordered(LINES * 3, 4), [*COMPOSE, "--axis", "0", "--reverse"]),
    "columns": (floats(LINES, 3 * CHUNK + 1), ["--axis", "0"]),
    "columns-reverse": (ordered(LINES, 3 * CHUNK), [*COMPOSE, "--axis", "0", "--reverse"]),
    "axis-1": (floats(LINES * 3, 5), ["--axis", "1"]),
    "axis-1-long": (ordered(LINES, 3 * CHUNK + 1), [*COMPOSE, "--axis", "1", "--exclusive"]),
    "flags": (ordered(MANY), [*COMPOSE, "--segments", "flags.npy"]),
    "keys": (floats(MANY), ["--segments", "keys.npy", "--reverse", "--initial", "0.5"]),
    "days": (ordered(MANY), [*COMPOSE, "--segments", "days.npy", "--exclusive"]),
    "structures": (lambda rng: digits(rng, MANY), PRINTS),
    "structures-exclusive": (lambda rng: digits(rng, MANY), [*PRINTS, "--exclusive"]),
}


class Jobs:
    """Runs jobs in chunks of ten elements, which stop when they are told to."""

    def __init__(self, run, save, folder, comm, monkeypatch):
        self.run, self.save, self.folder, self.comm = run, save, folder, comm
        self.patch, self.chunk, self.resident, self.threads = monkeypatch, CHUNK, False, 1
        self.written = []  # by the last job, on this rank: the first elements of chunks
        decide = plan.decide_budget

        def decided(**given):
            resident = self.resident and given["sweeps"] > 1
            return decide(**given)._replace(chunk=self.chunk, resident=resident)

        monkeypatch.setattr(job, "decide_budget", decided)

    def choose(self, form, rng):
        """Write the inputs of a form; run it once; return the result's bytes."""
        make, self.options = FORMS[form]
        x = make(rng)
        heads = rng.random(x.size) < 0.07
        keys = np.cumsum(heads) % 3
        self.inputs = {"x.npy": x, "flags.npy": heads, "keys.npy": keys.astype("U3"),
                       "days.npy": keys.astype("M8[D]")}  # fmt: skip
        for name, array in self.inputs.items():
            self.save(name, array)
        status, self.report, err = self.job()
        assert status == 0, err
        return self.take()

    def job(self, *options):
        """Run a job; note the chunks that it writes. Return the status, the report, stderr."""
        given = ["--backend", "cpu", "--threads", str(self.threads), "--memory", "500"]
        self.written = []
        with self.patch.context() as patch:
            spoil(patch, self.note)
            status, out, err = self.run(
                "x.npy", *given, *self.options, *options, "--json", "--quiet"
            )
        return status, json.loads(out) if status == 0 else None, err

    def note(self, elements, index):
        self.written.append(index)
        return elements

    def resume(self, want):
        """Run a job with --resume to its end; compare the result."""
        status, report, err = self.job("--resume", "--force")
        assert status == 0, err
        assert self.take() == want
        return report

    def take(self):
        """Return the result's bytes, and remove it: nothing else is left."""
        assert left(self.comm, self.folder) == sorted([*self.inputs, "x.scan.npy"])
        result = (self.folder / "x.scan.npy").read_bytes()
        self.comm.Barrier()
        self.alone((self.folder / "x.scan.npy").unlink)
        return result

    def alone(self, call):
        """Call a function on rank 0, while the others wait."""
        if self.comm.rank == 0:
            call()
        self.comm.Barrier()

    def stop(self, stage, turn, guilty=range(RANKS), options=("--resume",)):
        """Run a job that stops at a "write" or a "scan" of the guilty ranks."""

        def failing(function):
            calls = count()

            def call(*args):
                if self.comm.rank in guilty and next(calls) == turn:
                    raise OSError("stopped")
                return function(*args)

            return call

        with self.patch.context() as patch:
            if stage == "write":
                patch.setattr(self, "note", failing(self.note))
            else:
                patch.setattr(shard.Carry, "advance", failing(shard.Carry.advance))
            status, _, err = self.job(*options)
        assert status == 0 or "stopped" in err, err
        return status

    def found(self, pattern):
        """Return the files that jobs have left."""
        self.comm.Barrier()
        found = sorted(self.folder.glob(f".x.scan.npy.*.part{pattern}"))
        self.comm.Barrier()
        return found
