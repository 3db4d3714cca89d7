"""Fresh processes: programs that are no rank of the job that starts them.

A child process that has the launcher's variables joins the job of its parent, as the same rank, and
writes into the shared memory of the parent's messages.
"""

import os
import subprocess
import sys

_LAUNCHERS = "PMI", "OMPI", "PRTE", "HYDRA", "MPI"


def environment(**variables):
    """This process's environment without the launcher's variables, and with ``variables``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS) or k == "MPIRUN"}
    return kept | variables


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
