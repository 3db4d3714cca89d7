"""Disturb services at random moments: every job is accounted for, and every answer is right.

    python launch/tools/service_faults.py                  # 20 times each, 2 ranks
    python launch/tools/service_faults.py --times 1 --kinds "a full disk"

A client, a rank, or mpirun is killed; the disk of the jobs becomes full, or their file is removed;
a body is corrupt; a client reads or sends slowly, or stops. Meanwhile others submit file jobs, and
scan small arrays. If the service ends, it is started again in the same folder, as by a supervisor.
After each fault:

- every file job is done, and its output is right; or it is reported as failed, there is no output
  or the whole one, and it is done when it is submitted again
- no job is there twice, and no output has changed after its job was done
- a client that sends its request again, under its key, is told within seconds which job it is
- scans of small arrays are right, and no array of a client is left in memory

At the end of each kind no process, socket or temporary file is left.

If the system permits, the script has a mount namespace of its own, and in it a disk that it can
fill. Otherwise a limit of the size of files takes its place. All depends only on the seed.
"""

import argparse
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from processes import LIMIT, Fault, until
from service_cases import ENDING, FAULTS, Job, Trial
from service_running import running
from small_disk import cover, isolate, mount

from distscan.core.errors import OutputError
from distscan.service.client import Client
from distscan.service.errors import ServiceError, StoreError

TOLD = 5.0  # seconds until a client that comes again is told what became of its job
HANGS = 300  # seconds after which a trial is at fault
SOON = 10.0  # seconds until the service has let go of clients that are gone


class Summary(NamedTuple):
    """The results of the trials of a kind."""

    tried: int
    wrong: int
    longest: float  # the longest time until a client was told, in seconds


def disturb(trial: Trial, kind: str) -> float:
    """Disturb in one way, at a random moment; return the seconds until a client was told."""
    service, idle = trial.service, trial.service.sockets()
    with trial.others():
        time.sleep(trial.rng.uniform(0, 0.6))
        waits, begun = list[float](), time.monotonic()
        asks = threading.Thread(target=_ask, args=(trial, begun, waits), daemon=True)
        if kind in ENDING:
            FAULTS[kind](trial)
            asks.start()
            service.wait()
            for job in trial.jobs:
                if job.output.exists() and not _is_right(job):
                    raise Fault(f"{job.output} is there, and not whole")
            service.start()
        else:
            asks.start()
            FAULTS[kind](trial)
        asks.join(LIMIT)
    if not waits:
        raise Fault("a client that came again was not told what became of its job")
    if waits[0] > TOLD:
        raise Fault(f"a client that came again was told after {waits[0]:.1f} s")
    with service.client() as client:
        for job in trial.jobs:
            trial.note(job, job.submit(client))  # those that a client could not submit, too
            account(trial, job, client, kind)
        count(trial, client)
        for size in trial.rng.integers(0, 5000, 20):
            x = trial.rng.integers(-1000, 1000, size)
            if not np.array_equal(client.scan(x), x.cumsum()):
                raise Fault(f"afterwards, a wrong scan of {size} elements")
    if kind not in ENDING:
        until(lambda: service.sockets() <= idle, SOON, "sockets of clients are left")
    until(lambda: not service.arrays(), SOON, "arrays of clients are left in memory")
    trial.remove()
    if leftovers := [path.name for path in service.files.iterdir()]:
        raise Fault(f"{leftovers} are left beside the outputs")
    return waits[0]


def _ask(trial: Trial, begun: float, waits: list[float]) -> None:
    """Submit the first job again, under its key, until the service tells its number."""
    job = trial.jobs[0]
    with trial.service.client() as client:
        while time.monotonic() < begun + LIMIT:
            try:
                trial.note(job, job.submit(client))
            except StoreError:  # a full disk
                time.sleep(0.1)
                continue
            except Exception as error:
                trial.wrong.append(f"a client that came again got {error!r}")
                return
            waits.append(time.monotonic() - begun)
            return


def _is_right(job: Job) -> bool:
    """Return whether the output of a job is right."""
    try:
        return np.array_equal(np.load(job.output), job.want)
    except (ValueError, EOFError):
        return False


def account(trial: Trial, job: Job, client: Client, kind: str) -> None:
    """Wait for the end of a job, and compare its output."""
    handle = client.job(trial.numbers[job.key])
    limited = kind == "a full disk" and not trial.mounted  # its output is limited, too
    refused = (ServiceError, OutputError, OSError) if limited else ServiceError
    try:
        handle.wait(LIMIT)
    except refused as error:
        if job.output.exists() and not _is_right(job):
            raise Fault(f"{error}; {job.output} is there, and not whole") from error
        second = job._replace(key=f"{job.key}-again", request=job.request | {"force": True})
        client.job(second.submit(client)).wait(LIMIT)
    except Exception as error:
        raise Fault(f"job {handle.number} ended with {error!r}") from error
    else:
        if (ended := handle.refresh()["ended"]) < job.output.stat().st_ctime - 0.01:
            raise Fault(f"job {handle.number} ended at {ended}, and its output changed later")
    if not _is_right(job):
        raise Fault(f"job {handle.number} is done, and its output is wrong")


def count(trial: Trial, client: Client) -> None:
    """Look for jobs that are there twice, or are lost."""
    records = client.request("GET", "/v1/jobs", params={"most": 1000}).json()["jobs"]
    for job in trial.jobs:
        numbers = [each["number"] for each in records if each["key"] == job.key]
        same = [each for each in records if each["request"]["output"] == str(job.output)]
        repeated = [each for each in same if each["key"] == f"{job.key}-again"]
        fillers = [each for each in same if each["request"]["initial"] is not None]
        if numbers != [trial.numbers[job.key]] or len(same) - len(repeated) - len(fillers) != 1:
            raise Fault(f"job {trial.numbers[job.key]} is there as {numbers}: {same}")


def perform(kind: str, options: argparse.Namespace, folder: Path, *, mounted: bool) -> Summary:
    """Try a kind several times; print the faults. After a fault, another service takes over."""
    number = wrong = 0
    longest = 0.0
    while number < options.times:
        place = folder / f"{list(FAULTS).index(kind)}-{number}"
        (place / "state").mkdir(parents=True)
        if mounted:
            mount(place / "state")
        try:
            with running(place, options.ranks) as service:
                while number < options.times:
                    number += 1
                    seed = [options.seed, list(FAULTS).index(kind), number]
                    rng = np.random.default_rng(seed)
                    trial = Trial(service, rng, f"trial-{number}", mounted=mounted)
                    signal.alarm(HANGS)
                    longest = max(longest, disturb(trial, kind))
        except Exception as fault:
            wrong += 1
            messages = (place / "messages").read_text()[-2000:]
            print(f"FAULT, {kind}, trial {number}: {fault!r}\n{messages}", flush=True)
        signal.alarm(0)
        if mounted:
            subprocess.run(["umount", str(place / "state")], check=True)
    return Summary(number, wrong, longest)


def _hangs(number: int, frame: object) -> None:
    raise Fault(f"the trial has not ended after {HANGS} s")


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="service_faults.py", description=__doc__.split("\n")[0])
    add, kinds = parser.add_argument, list(FAULTS)
    add("--ranks", type=int, default=2, help="at least 2 (default: 2)")
    add("--times", type=int, default=20, help="of each kind (default: 20)")
    add("--kinds", nargs="+", choices=kinds, default=kinds, metavar="KIND",
        help=f"these only: {', '.join(kinds)}")  # fmt: skip
    add("--folder", type=Path, help="where files are, in a new folder (default: /tmp)")
    add("--seed", type=int, default=secrets.randbelow(10**9), help="repeats a run; printed")
    return parser.parse_args()


def main(*, mounted: bool) -> int:
    """Run the trials; return the exit status. With ``mounted`` there may be a disk of its own."""
    options = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the service ends, too
    signal.signal(signal.SIGALRM, _hangs)
    with tempfile.TemporaryDirectory(prefix="service_faults-", dir=options.folder) as name:
        folder = Path(name)
        if mounted:
            cover(folder)
        disk = "a small disk" if mounted else "no mounts: a limit of the size of files"
        print(f"seed {options.seed}, {options.ranks} ranks, {disk}", flush=True)
        print(f"{'':20}{'tried':>6}{'right':>6}{'wrong':>6}  longest until a client was told")
        faults = 0
        for kind in options.kinds:
            tried, wrong, longest = perform(kind, options, folder, mounted=mounted)
            faults += wrong
            print(f"{kind:20}{tried:6}{tried - wrong:6}{wrong:6}{longest:8.2f} s", flush=True)
    if faults:
        repeat = f"--ranks {options.ranks} --times {options.times} --seed {options.seed}"
        kinds = shlex.join(options.kinds)
        print(f"repeat it by python launch/tools/service_faults.py {repeat} --kinds {kinds}")
    return bool(faults)


if __name__ == "__main__":
    parse()  # faults are told once
    sys.exit(main(mounted=isolate()))
