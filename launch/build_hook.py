"""The build hook of pyproject.toml: a wheel has compiled kernels for CPUs if they can be built."""

import os
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

import build_cpu


class BuildHook(BuildHookInterface):
    """Compile the kernels; put the libraries into the wheel, and their machine into its tag."""

    def initialize(self, version, build_data):
        """Build the levels in ``DISTSCAN_CPU_LEVELS``; if it is not set, failing is no error."""
        levels = os.environ.get("DISTSCAN_CPU_LEVELS")
        try:
            machine, paths = build_cpu.build(levels or "native")
        except (build_cpu.BuildError, OSError) as error:
            if levels:
                raise
            self.app.display_warning(f"distscan: no compiled kernels for CPUs: {error}")
            return
        names = [path.relative_to(build_cpu.ROOT) for path in paths]
        build_data["artifacts"] += [f"/{name}" for name in names]
        build_data["tag"] = f"py3-none-linux_{machine}"
        build_data["pure_python"] = False
