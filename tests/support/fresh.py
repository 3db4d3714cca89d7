"""Fresh processes: Python programs that no launcher has started."""

import os
import subprocess
import sys

_LAUNCHERS = "PMI", "OMPI", "PRTE", "HYDRA", "MPI"


def python(program, *arguments, **variables):
    """Run a program text in a process of its own, as one rank; ``variables`` are environment."""
    alone = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        check=False,
        env=alone | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
