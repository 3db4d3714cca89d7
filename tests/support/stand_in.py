"""Modules that stand in for those that speak to GPUs, on any machine."""

import sys
from types import ModuleType

import distscan.cuda


def gpus(monkeypatch, **functions):
    """Give ``distscan.cuda.memory`` these functions alone."""
    module = ModuleType("distscan.cuda.memory")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(distscan.cuda, "memory", module, raising=False)
