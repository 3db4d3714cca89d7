"""Child processes of a test, by ``os.fork``."""

import os
import sys
import traceback


def forked(work):
    """Run ``work`` in a child process; return the number of that."""
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
    """Wait for its end; return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
