"""Exceptions that a traceback shows above the one that was raised."""

from pathlib import Path

import distscan

PACKAGE = str(Path(distscan.__file__).parent)
TESTS = str(Path(__file__).parents[1])


def internal(fault):
    """Return the first exception that a refusal of distscan shows without wanting to; else None.

    What it names as its cause, it wants to show. Faults of the system and of a caller's functions
    help the reader.
    """
    if not any(file.startswith(PACKAGE) for file in _files(fault)):
        return None
    while fault is not None:
        context = None if fault.__suppress_context__ else fault.__context__
        if context is not None and not isinstance(context, OSError):
            *_, innermost = _files(context)
            if not innermost.startswith(TESTS):
                return context
        fault = fault.__cause__ or context
    return None


def _files(fault):
    """Return the files of a traceback, the innermost last."""
    files, trace = [], fault.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return files
