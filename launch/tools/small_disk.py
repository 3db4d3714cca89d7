"""Disks in memory that scripts can fill, in a mount namespace of their own."""

import os
import subprocess
import sys
from pathlib import Path

ISOLATED = "DISTSCAN_ISOLATED"  # the process that is in a namespace of its own


def isolate() -> bool:
    """Begin this process again in a mount namespace of its own; return False if that is refused."""
    if os.environ.get(ISOLATED) == str(os.getpid()):
        return True
    command = ["unshare", "--map-root-user", "--mount"]
    trial = "mount -t tmpfs -o size=1M tmpfs /mnt && mount -o remount,size=2M /mnt"
    try:
        refused = subprocess.run([*command, "sh", "-c", trial], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    if refused.returncode:
        return False
    os.environ[ISOLATED] = str(os.getpid())
    return bool(os.execvp(command[0], [*command, sys.executable, *sys.argv]))


def cover(folder: Path) -> None:
    """Give MPI a /dev/shm of its own: ranks that are killed leave files in it."""
    shared = Path("/dev/shm")  # nosec B108 # nothing is written: it is covered
    if shared.is_dir() and shared not in folder.resolve().parents:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(shared)], check=True)


def mount(folder: Path, size: int = 1 << 34) -> None:
    """Make a disk in memory, or give it another size."""
    how = ["-o", f"remount,size={size}"]
    if not folder.is_mount():
        how = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    subprocess.run(["mount", *how, str(folder)], check=True)
