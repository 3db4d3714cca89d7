"""Processes: exceptions and files that all ranks see, and programs that are no rank of the job."""

import os
import subprocess
import sys
import traceback

import pytest


def everywhere(comm, kind, message, call):
    """The call raises the same exception on every rank; return its text."""
    with pytest.raises(kind, match=message) as caught:
        call()
    texts = comm.allgather((type(caught.value).__name__, str(caught.value)))
    assert len(set(texts)) == 1
    return texts[0][1]


def left(comm, folder):
    """Return the names in a folder that all ranks share."""
    comm.Barrier()
    names = sorted(os.listdir(folder))
    comm.Barrier()
    return names


# ---- programs in processes of their own ----------------------------------------------------------

# A child process that has the launcher's variables joins the job of its parent, as the same rank,
# and writes into the shared memory of the parent's messages.

_LAUNCHERS = "PMI", "OMPI_", "PRTE", "HYDRA", "MPI_"


# A program that begins with this finds no mpi4py.
NO_MPI = """
import sys

class NoMpi:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mpi4py":
            raise ImportError("there is none")

sys.meta_path.insert(0, NoMpi())
"""


def environment(**variables):
    """This process's environment without the launcher's variables, and with ``variables``."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
    return others | variables


def python(program, *arguments, **variables):
    """Run a program text in a process of its own, as one rank; ``variables`` are environment."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        check=False,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
    )


# ---- child processes, by ``os.fork`` -------------------------------------------------------------


def forked(work):
    """Run ``work`` in a child process; return the number of the process."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return child


def ended(child):
    """Wait for the end of a child process; return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def torchrun(ranks, text, folder):
    """Run a program on so many ranks; each prints that all is right."""
    program = folder / "program.py"
    program.write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment(OMP_NUM_THREADS="1"),
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("all right") == ranks
