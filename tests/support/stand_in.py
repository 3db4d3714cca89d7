"""Modules that stand in for those that speak to GPUs, on any machine."""

import sys
from types import ModuleType

import distscan.cuda


def gpus(monkeypatch, **functions):
    """Give ``distscan.cuda.gpus`` these functions, and ``distscan.cuda.memory`` none."""
    for name, content in (("gpus", functions), ("memory", {})):
        module = ModuleType(f"distscan.cuda.{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(distscan.cuda, name, module, raising=False)
