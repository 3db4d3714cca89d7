"""The definition of a scan, for every backend: operators, types, extents, segments, arrays."""

import functools
import os
import sys
import threading
from types import ModuleType
from typing import Any

# The locks of modules, in a process that is forked while another thread holds them. That thread is
# not there in the child, and would never release them. So the child begins with new ones: no module
# has to see to it.

_MAKERS: dict[type, Any] = {type(make()): make for make in (threading.Lock, threading.RLock)}


def _renew() -> None:
    """Replace the locks of all modules of this package, and those of their cached properties."""
    package, new = __name__.partition(".")[0], dict[int, Any]()
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] != package:
            continue
        for name, value in list(vars(module).items()):
            if type(value) in _MAKERS:  # several modules may have one lock
                setattr(module, name, new.setdefault(id(value), _MAKERS[type(value)]()))
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for each in vars(value).values():  # they have a lock before Python 3.12
                    if isinstance(each, functools.cached_property) and hasattr(each, "lock"):
                        each.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
