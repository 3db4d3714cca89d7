"""The exceptions of a service: their JSON, and their status of HTTP."""

from typing import Any

import numpy as np

from ..core import errors
from ..core.errors import USAGE, DistscanError

_BUILTIN: tuple[type[Exception], ...] = (
    *(np.exceptions.AxisError, *USAGE),
    *(MemoryError, OSError, RuntimeError),
)


class ServiceError(DistscanError, RuntimeError):
    """The service refuses a request, or cannot be reached."""

    status = 500


class BusyError(ServiceError):
    """The service has too much to do: try again later."""

    status = 429


class TooLargeError(ServiceError):
    """The array is larger than the service takes."""

    status = 413


class UnauthorizedError(ServiceError):
    """The request does not have the token of the service."""

    status = 401


class ForbiddenError(ServiceError):
    """The service must not do this for this client."""

    status = 403


class NotFoundError(ServiceError):
    """There is no such job."""

    status = 404


class StoreError(ServiceError):
    """The jobs cannot be read or written, such as on a full disk."""

    status = 507


class StoreLostError(StoreError):
    """The file of the jobs is another one than the service has opened: no jobs are taken."""

    status = 503


class KeyReusedError(ServiceError):
    """The key of a request names another request already."""

    status = 409


class JobEndedError(ServiceError):
    """A job cannot be cancelled: it had ended."""

    status = 409


class CancelledJobError(ServiceError):
    """The job was cancelled."""

    status = 409


class ProtocolError(ServiceError):
    """The client and the service are of versions that do not understand each other."""

    status = 426


#: The exceptions for requests that are well-formed, and refused.
REFUSALS = (UnauthorizedError, ForbiddenError, TooLargeError, BusyError, ProtocolError)
_DISTSCAN: dict[str, type[Exception]] = {
    name: kind
    for names in (vars(errors), globals())
    for name, kind in names.items()
    if isinstance(kind, type) and issubclass(kind, DistscanError)
}
_TYPES = {kind.__name__: kind for kind in _BUILTIN} | _DISTSCAN


# Those of clients alone: they are never sent.


class NoAnswerError(ServiceError, TimeoutError):
    """The service is there, but has said nothing for too long."""


class StoppedError(ServiceError):
    """The client was closed, or the task that asked was cancelled, before there was an answer."""


def to_json(error: Exception) -> dict[str, Any]:
    """Return an exception in a form that JSON has.

    >>> to_json(ValueError("axis 3"))
    {'type': 'ValueError', 'message': 'axis 3'}
    """
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _TYPES]
    return {"type": (names or ["Exception"])[0], "message": str(error) or type(error).__name__}


def from_json(error: dict[str, Any]) -> Exception:
    """Return the exception that ``to_json`` has described.

    >>> from_json({"type": "ValueError", "message": "axis 3"})
    ValueError('axis 3')
    """
    kind = _TYPES.get(str(error.get("type")), ServiceError)
    return kind(str(error.get("message", "no message")))


def status(error: Exception) -> int:
    """Return the status of HTTP for an exception."""
    if isinstance(error, ServiceError):
        return error.status
    return 400 if isinstance(error, USAGE) else 500
