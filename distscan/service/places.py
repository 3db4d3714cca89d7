"""Where a service listens, and where it keeps its jobs: known to its clients, too."""

import os
import stat
from pathlib import Path

from .errors import ServiceError


def runtime() -> Path:
    """Return this user's folder for sockets."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given:
        return Path(given, "distscan")
    # Not TMPDIR: the client's may differ. Nobody else's folder is used: see check_private.
    return Path(f"/tmp/distscan-{os.getuid()}")  # nosec B108


def socket_path() -> Path:
    """Return the default path of the socket; ``DISTSCAN_SERVICE`` names another."""
    return Path(os.environ.get("DISTSCAN_SERVICE") or runtime() / "socket")


def socket_to_use() -> Path:
    """Return ``socket_path`` for a client: no other user may have put a socket there."""
    path = socket_path()
    if "DISTSCAN_SERVICE" not in os.environ and path.parent.exists():
        check_private(path.parent)
    return path


def state_folder() -> Path:
    """Return the default folder of a service's jobs."""
    given = os.environ.get("XDG_STATE_HOME")
    return (Path(given) if given else Path.home() / ".local/state") / "distscan"


def make_private(folder: Path) -> None:
    """Make a folder for this user alone, unless it is there; then check it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise ``ServiceError`` if another user may write to a folder."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ServiceError(f"{folder} must be a folder of this user that nobody else may write to")


def token_in(path: Path) -> str:
    """Return the token in a file that this user alone may read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(f"cannot read the token in {path}: {error}") from error
    if mode & 0o077:
        raise ServiceError(f"others may read {path}: run chmod 600 {path}")
    if len(text) < 16:
        raise ServiceError(f"the token in {path} has fewer than 16 characters")
    return text
