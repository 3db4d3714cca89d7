"""The protocol of a service and its clients: version, states of jobs, sockets, tokens."""

import os
import stat
from pathlib import Path

from .errors import ServiceError

#: The version of the protocol; a client of another one is refused.
VERSION = 1
#: The states of jobs that have ended.
ENDED = ("done", "failed", "cancelled")


# ---- where a service listens, and where it keeps its jobs ----------------------------------------


def socket_folder() -> Path:
    """Return this user's folder for sockets."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder:
        return Path(folder, "distscan")
    # Not TMPDIR: the client's may differ. Nobody else's folder is used: see check_private.
    return Path(f"/tmp/distscan-{os.getuid()}")  # nosec B108


def socket_path() -> Path:
    """Return the path of the socket on which a service listens; ``DISTSCAN_SERVICE`` names one.

    Raises ValueError if that is a URL.
    """
    named = os.environ.get("DISTSCAN_SERVICE")
    if named and is_url(named):
        raise ValueError(
            f"DISTSCAN_SERVICE is a URL, {named}: name where to listen by --socket, or by --host "
            "and --port"
        )
    return Path(named or socket_folder() / "socket")


def address_to_use() -> str:
    """Return the address of the service for a client: ``DISTSCAN_SERVICE``, or this user's socket.

    Raises ``ServiceError`` if another user may have put a socket there.
    """
    if named := os.environ.get("DISTSCAN_SERVICE"):
        return named
    folder = socket_folder()
    if folder.exists():
        check_private(folder)
    return str(folder / "socket")


def is_url(address: str) -> bool:
    """Return whether an address is a URL, not the path of a socket.

    >>> is_url("http://127.0.0.1:8000"), is_url("/run/user/1000/distscan/socket")
    (True, False)
    """
    return address.lower().startswith(("http://", "https://"))


def token_to_use(address: str, token: str | None) -> str | None:
    """Return the token that a client sends: ``token``, or ``DISTSCAN_TOKEN`` over TCP.

    Raises ValueError if no header of HTTP can have it. No message has it.
    """
    if token is None and is_url(address):
        token = os.environ.get("DISTSCAN_TOKEN", "") or None
    token = None if token is None else token.strip()  # a file of it ends with a newline
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ValueError("the token has other characters than printable ones of ASCII")
    return token


def state_folder() -> Path:
    """Return the default folder of a service's jobs."""
    folder = os.environ.get("XDG_STATE_HOME")
    return (Path(folder) if folder else Path.home() / ".local/state") / "distscan"


def make_private(folder: Path) -> None:
    """Make a folder for this user alone if there is none, and check it."""
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
        reason = getattr(error, "strerror", None) or error
        raise ServiceError(
            f"cannot read the token in {path}: {reason}; name the file of the service's token"
        ) from error
    if mode & 0o077:
        raise ServiceError(f"others may read {path}: run chmod 600 {path}")
    if len(text) < 16:
        raise ServiceError(
            f"the token in {path} has fewer than 16 characters; make one: openssl rand -hex 32"
        )
    return text
