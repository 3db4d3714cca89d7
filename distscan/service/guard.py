"""What every request must bring: the token, a version of the protocol. Errors become answers."""

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ..version import __version__
from . import errors, logs, protocol
from .errors import ProtocolError, TooLargeError, UnauthorizedError
from .metrics import Metrics

_log = logging.getLogger("distscan.service")
_LONGEST = 1 << 20  # bytes of JSON
Answer = Callable[[Request], Awaitable[Response]]


class Json(JSONResponse):
    """JSON in ASCII: the name of a file may have bytes that are no text, which UTF-8 has not."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of an answer."""
        return dumps(content).encode()


def dumps(value: Any) -> str:
    """Return JSON in ASCII. ``jobs`` of an object are written one by one: threads take turns.

    >>> dumps({"jobs": [{"number": 2}, {"number": 1}], "queued": 0})
    '{"queued": 0, "jobs": [{"number": 2}, {"number": 1}]}'
    """
    if not isinstance(value, dict) or not isinstance(jobs := value.get("jobs"), list):
        return json.dumps(value, allow_nan=False)
    listed = ", ".join(json.dumps(job, allow_nan=False) for job in jobs)
    facts = [dumps({name: fact})[1:-1] for name, fact in value.items() if name != "jobs"]
    return "{" + ", ".join([*facts, f'"jobs": [{listed}]']) + "}"


class Guard:
    """Checks requests before they are answered; logs and counts those that are refused."""

    def __init__(self, token: str | None, metrics: Metrics) -> None:
        """``token`` is what a client must bring; None: the socket's mode says who may come."""
        self._token, self._metrics = token, metrics

    def __call__(self, answer: Answer) -> Answer:
        """Return a route that answers requests which pass; exceptions become answers, too."""

        async def route(request: Request) -> Response:
            try:
                self._check_token(request)
                _check_version(request)
                return await answer(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except Exception as error:
                return self.refusal(request, error)

        return route

    def _check_token(self, request: Request) -> None:
        """Refuse a client that does not bring the token."""
        said = request.headers.get("authorization", "")
        if self._token is not None and not hmac.compare_digest(
            said.encode(), f"Bearer {self._token}".encode()
        ):
            wrong = "a wrong token" if said else "no token"
            raise UnauthorizedError(f"{wrong}: this service takes requests with its token only")

    def refusal(self, request: Request, error: Exception) -> Response:
        """Return the answer to a request that raises an exception; log and count it."""
        self._note(request, error)
        return Json({"error": errors.to_json(error)}, errors.status(error))

    def _note(self, request: Request, error: Exception) -> None:
        """Log a request that was refused, or that met a fault of the service."""
        status, reason = errors.status(error), logs.cut(str(error))
        path = request.scope["path"]
        facts = {"method": request.method, "path": path, "status": status, "reason": reason}
        facts |= _who(request)
        what = f"{request.method} {path} by {facts['client']}"
        if isinstance(error, errors.REFUSALS):
            self._metrics.refused(error)
            _log.warning("%s was refused: %s", what, reason, extra=facts)
        elif status >= 500:
            _log.error("%s has failed: %s", what, reason, extra=facts, exc_info=error)


def _who(request: Request) -> dict[str, str]:
    """Return the address of a client over TCP, and the one for which a proxy says that it asks."""
    if request.client is None:  # the socket's mode lets no other user in
        return {"client": "a client of this user"}
    found = {"client": f"{request.client.host}:{request.client.port}"}
    if said := request.headers.get("x-forwarded-for"):
        found["forwarded_for"] = logs.cut(said)
    return found


def _check_version(request: Request) -> None:
    """Refuse a client of another protocol."""
    spoken = request.headers.get("distscan-protocol", str(protocol.VERSION))
    if spoken != str(protocol.VERSION):
        raise ProtocolError(
            f"the client speaks protocol {spoken}, this service {protocol.VERSION} "
            f"(distscan {__version__}): install the same version on both sides"
        )


async def json_of(request: Request) -> Any:
    """Return what a request has as JSON; raise ``TooLargeError`` if it is longer than a MiB."""
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > _LONGEST:
            raise too_large(_LONGEST)
    try:
        return json.loads(found)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the request is no JSON: {error}") from None


def too_large(most: int) -> TooLargeError:
    """Return the exception for a body of more than ``most`` bytes."""
    return TooLargeError(f"the request has more than {most} bytes, the most that is taken")
