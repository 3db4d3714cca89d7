"""Checks of requests: token, origin, version, options and paths; and the forms of answers."""

import hmac
import ipaddress
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..core import dtypes
from ..core.errors import InputError
from ..job.formats.interface import Location
from ..job.job import FileJob
from ..options import RunOptions, ScanOptions, parse
from ..version import __version__
from . import errors, monitoring, protocol
from .arrays import Place, Task
from .dispatch import job_from_json, job_to_json
from .errors import ForbiddenError, ProtocolError, TooLargeError, UnauthorizedError
from .monitoring import Metrics

# ---- the token, and the version of the protocol; errors become answers ---------------------------

_log = logging.getLogger("distscan.service")
_LONGEST_BODY = 1 << 20  # bytes of JSON
Endpoint = Callable[[Request], Awaitable[Response]]


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
    jobs_text = ", ".join(json.dumps(job, allow_nan=False) for job in jobs)
    facts = [dumps({name: fact})[1:-1] for name, fact in value.items() if name != "jobs"]
    return "{" + ", ".join([*facts, f'"jobs": [{jobs_text}]']) + "}"


class Guard:
    """Checks requests before they are answered; logs and counts those that are refused."""

    def __init__(self, token: str | None, metrics: Metrics) -> None:
        """Clients must send ``token``; None: the mode of the socket decides who may connect."""
        self._token, self._metrics = token, metrics

    def __call__(self, endpoint: Endpoint) -> Endpoint:
        """Return a route that answers requests which pass; exceptions become answers, too."""

        async def route(request: Request) -> Response:
            try:
                self._check_token(request)
                _check_version(request)
                return await endpoint(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except Exception as error:
                return self.refusal(request, error)

        return route

    def _check_token(self, request: Request) -> None:
        """Refuse a request without the token."""
        header = request.headers.get("authorization", "")
        if self._token is not None and not hmac.compare_digest(
            header.encode(), f"Bearer {self._token}".encode()
        ):
            fault = "a wrong token" if header else "no token"
            raise UnauthorizedError(f"{fault}: this service takes requests with its token only")

    def refusal(self, request: Request, error: Exception) -> Response:
        """Return the answer to a request that raises an exception.

        Log a request that was refused, or that met a fault of the service.
        """
        status, reason = errors.status(error), monitoring.shorten(str(error))
        path = request.scope["path"]
        facts = {"method": request.method, "path": path, "status": status, "reason": reason}
        facts |= _client_facts(request)
        event = f"{request.method} {path} by {facts['client']}"
        if isinstance(error, errors.REFUSALS):
            self._metrics.count_refusal(error)
            _log.warning("%s was refused: %s", event, reason, extra=facts)
        elif status >= 500:
            _log.error("%s has failed: %s", event, reason, extra=facts, exc_info=error)
        return Json({"error": errors.to_json(error)}, status)


def _client_facts(request: Request) -> dict[str, str]:
    """Return the address of a client over TCP, and the address that a proxy forwards for."""
    if request.client is None:  # the socket's mode lets no other user in
        return {"client": "a client of this user"}
    facts = {"client": f"{request.client.host}:{request.client.port}"}
    if forwarded := request.headers.get("x-forwarded-for"):
        facts["forwarded_for"] = monitoring.shorten(forwarded)
    return facts


def _check_version(request: Request) -> None:
    """Refuse a client of another protocol."""
    version = request.headers.get("distscan-protocol", str(protocol.VERSION))
    if version != str(protocol.VERSION):
        raise ProtocolError(
            f"the client speaks protocol {version}, this service {protocol.VERSION} "
            f"(distscan {__version__}): install the same version on both sides"
        )


async def json_of(request: Request) -> Any:
    """Return the JSON of a request; raise ``TooLargeError`` if it is longer than a MiB."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _LONGEST_BODY:
            raise too_large(_LONGEST_BODY)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the request is no JSON: {error}") from None


def too_large(most: int) -> TooLargeError:
    """Return the exception for a body of more than ``most`` bytes."""
    return TooLargeError(f"the request has more than {most} bytes, the most that is taken")


# ---- answers in pieces ---------------------------------------------------------------------------


class StreamedAnswer(StreamingResponse):
    """An answer in pieces. Its resources are released at its end, or when its client has gone."""

    def __init__(self, pieces: AsyncIterator[bytes], resources: ExitStack, **options: Any) -> None:
        super().__init__(pieces, **options)
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        with self._resources:
            await super().__call__(scope, receive, send)


# ---- requests that a browser sends for other web pages are refused -------------------------------

# A page of any site may have a browser send requests to services on the browser's machine. Headers
# that no page can change say who asked:
#
#     Origin: https://example.org    a page of another site did
#     Sec-Fetch-Site: cross-site     the same, in requests that have no Origin
#
# The owner of a name may also let it lead to 127.0.0.1. The browser then takes this service for a
# part of the owner's site, so these headers do not help. But Host is then the owner's name:
#
#     Host: example.org              none of this machine's own names
#
# Over a Unix socket, clients name any host. Only a browser names one with a dot, as it
# does if it comes by ssh -L 8000:/path/to/socket.

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][\s/@?#:\\]+)(?::(\d+))?", re.ASCII)


class Host(NamedTuple):
    """A host of a URL; no port is 80, and 443."""

    name: str
    port: int | None


class Names(NamedTuple):
    """The names by which clients may call a service."""

    over_tcp: bool
    allowed: frozenset[Host] = frozenset()  # beside those of this machine itself


def host_of(text: str) -> Host:
    """Return the host that a header names; raise ValueError if it is none.

    >>> host_of("Scans.example.org:443"), host_of("[::1]:8000")
    (Host(name='scans.example.org', port=None), Host(name='[::1]', port=8000))
    """
    match = _HOST.fullmatch(text.lower())
    if match is None:
        raise ValueError(f"{text!r} is no host, such as scans.example.org or scans.example.org:81")
    port = None if match[2] is None else int(match[2])
    return Host(match[1].rstrip("."), None if port in {80, 443} else port)


class OriginFilter:
    """An application that answers no requests of other web pages."""

    def __init__(self, app: ASGIApp, guard: Guard, names: Names) -> None:
        """``guard`` answers those that are refused."""
        self._app, self._guard, self._names = app, guard, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "http":
            try:
                self._check(scope["method"], scope["path"], Headers(scope=scope))
            except ForbiddenError as error:
                answer = self._guard.refusal(Request(scope), error)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self._is_our_host(host):  # a browser always names one
            raise ForbiddenError(
                f"this service is not {host!r}; behind a reverse proxy, it needs --allow-host NAME"
            )
        if origin is not None and not self._is_our_page(origin, host):
            raise ForbiddenError(f"a page of {origin!r} may not use this service")
        site = headers.get("sec-fetch-site", "none")
        # Another page may have a link to this service's page, which holds no data.
        link = (method, path, headers.get("sec-fetch-mode")) == ("GET", "/", "navigate")
        if site not in {"same-origin", "none"} and not link:
            raise ForbiddenError(f"a page of another site may not use this service ({site!r})")

    def _is_our_host(self, header: str) -> bool:
        """Return whether a host is one of the names of this service."""
        try:
            host = host_of(header)
        except ValueError:
            return False
        if host in self._names.allowed or host.name.rpartition(".")[2] == "localhost":
            return True
        with suppress(ValueError):
            return ipaddress.ip_address(host.name.strip("[]")).is_loopback
        return not self._names.over_tcp and "." not in host.name

    def _is_our_page(self, origin: str, host: str | None) -> bool:
        """Return whether a page is of this service: of the host that the request names."""
        scheme, _, header = origin.partition("://")
        hosts = set(self._names.allowed) if host is None else {host_of(host), *self._names.allowed}
        with suppress(ValueError):
            return scheme in {"http", "https"} and host_of(header) in hosts
        return False


# ---- options, types and paths of requests --------------------------------------------------------

_TYPES = get_type_hints(ScanOptions) | get_type_hints(RunOptions)
_PATHS = ("segments", "state", "trace")
_OPTIONS = _TYPES.keys() - {*_PATHS}  # of a file job
_ARRAY_OPTIONS = {*ScanOptions._fields, "strategy"} - {"segments", "raw", "shape", "nulls"}
# The forms that options have in JSON; ``op`` and ``initial`` may be of several types.
_FLAGS = {name for name, kind in _TYPES.items() if kind is bool}
_NUMBERS = {name for name, kind in _TYPES.items() if kind == int | None}
_LISTS = {
    name for name, kind in _TYPES.items() if tuple in {get_origin(each) for each in get_args(kind)}
}
_TEXTS = {*_TYPES} - _FLAGS - _NUMBERS - _LISTS - {"op", "initial"}

INPUTS = 10_000  # files of a job at most
LONGEST = 4096  # characters of a text, such as a path
_LARGEST = (1 << 63) - 1
_AXES = 64  # of an array of NumPy


class Paths:
    """The folders in which clients may name files. Links that lead out of them are refused."""

    def __init__(self, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise InputError(f"there is no folder {root}; create it: mkdir -p {root}")
        self.roots = [root.resolve() for root in roots]

    def locate(self, text: object) -> Location:
        """Return the location of an array, whose file is checked as by ``check``."""
        if not isinstance(text, str):
            return Location(self.check(text))  # which raises
        location = Location.parse(text)
        return Location(self.check(str(location.file("a path of a service"))), location.member)

    def check(self, text: object) -> Path:
        """Return the path of a file, without links; the file need not exist."""
        if not isinstance(text, str) or "\0" in text:
            raise TypeError(f"a path is text, not {text!r}")
        if len(text) > LONGEST:
            raise ForbiddenError(f"{text} has more than {LONGEST} characters")
        path = Path(text)
        if not path.is_absolute():
            raise ValueError(f"{text} is relative; a service takes whole paths")
        try:
            path = path.resolve()
        except (OSError, RuntimeError) as error:
            raise ForbiddenError(f"{text} cannot be resolved: {error}") from error
        if not any(path.is_relative_to(root) for root in self.roots):
            raise ForbiddenError(f"{text} is in none of the folders that this service may use")
        return path


def job_of(request: Mapping[str, Any], paths: Paths) -> dict[str, Any]:
    """Check the request of a file job; return its job as JSON, with paths that are resolved.

    This takes as long as the disk takes to look the paths up.
    """
    if not isinstance(request, dict):
        raise TypeError("a job is an object of JSON")
    if unknown := sorted(request.keys() - {"inputs", "output", *_PATHS, *_OPTIONS}):
        raise ValueError(f"unknown options: {', '.join(unknown)}")
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise TypeError("inputs is a list of paths")
    if len(inputs) > INPUTS:
        raise TooLargeError(f"a job has at most {INPUTS} inputs, not {len(inputs)}")
    values = {name: value for name, value in request.items() if value is not None}
    options = {name: value for name, value in values.items() if name in _OPTIONS}
    _check_options(options)
    for name in _PATHS:
        if name in values:
            check = paths.locate if name == "segments" else paths.check
            options[name] = check(values[name])
    files = tuple(paths.locate(path) for path in inputs)
    job = job_to_json(FileJob.parse(files, paths.locate(request.get("output")), **options))
    job_from_json(job)  # the ranks read it from the store later
    return job


def _check_options(options: dict[str, Any]) -> None:
    """Check the types of options, and their sizes; their parser checks all else."""
    for name, value in options.items():
        _check_type(name, value)
    op = options.get("op", "sum")
    if not isinstance(op, str):  # a name alone: a client brings no code
        raise TypeError(f"unknown operator {op!r}: its name is text")
    initial = options.get("initial", 0)
    if not isinstance(initial, int | float | str):
        raise TypeError("initial is a number, or its text")
    if isinstance(initial, float) and not math.isfinite(initial):  # JSON has no such number
        raise ValueError(f"write initial as text: {str(initial)!r}")
    _check_shape(options.get("shape", [1]))


def _check_type(name: str, value: object) -> None:
    """Check the type and the size of an option: numbers are computed with, texts are stored."""
    if name in _FLAGS and not isinstance(value, bool):
        raise TypeError(f"{name} is true or false, not {value!r}")
    if name in _TEXTS and not isinstance(value, str):
        raise TypeError(f"{name} is text, not {value!r}")
    if isinstance(value, str) and len(value) > LONGEST:
        raise ValueError(f"{name} has more than {LONGEST} characters")
    if name in _NUMBERS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is a whole number, not {value!r}")
        if abs(value) > _LARGEST:
            raise ValueError(f"{name} is a whole number of 63 bits at most")


def _check_shape(shape: object) -> None:
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise TypeError(f"shape is a list of whole numbers, not {shape!r}")
    if len(shape) > _AXES or math.prod(n or 1 for n in shape) > _LARGEST:
        raise ValueError(f"shape has at most {_AXES} axes, and a product of 63 bits at most")


class ScanQuery(NamedTuple):
    """The options of an array's scan."""

    arguments: dict[str, Any]  # of ``distscan.scan``, in a form that JSON has
    options: ScanOptions  # the same, parsed
    out: np.dtype[Any] | None  # the type of the result
    has_segments: bool  # whether flags or keys follow the array


def scan_of(query: Mapping[str, str]) -> ScanQuery:
    """Check the options of an array's scan, as they stand in a URL, and return them.

    >>> scan_of({"op": "max", "axis": "1", "reverse": "true"}).arguments
    {'op': 'max', 'axis': 1, 'reverse': True}
    """
    if unknown := sorted(query.keys() - {"segments", "out", *_ARRAY_OPTIONS}):
        raise ValueError(f"unknown options: {', '.join(unknown)}")
    arguments = {
        name: _from_query(name, text) for name, text in query.items() if name in _ARRAY_OPTIONS
    }
    _check_options(arguments)
    options, _ = parse(**arguments)
    out = dtypes.parse(query["out"]) if "out" in query else None
    return ScanQuery(arguments, options, out, _flag("segments", query.get("segments", "false")))


def _from_query(name: str, text: str) -> Any:
    """Return the value of an option that stands in a URL.

    >>> _from_query("window", "-10,11"), _from_query("axis", "0"), _from_query("dtype", "f4")
    ([-10, 11], 0, 'f4')
    """
    if name in _FLAGS:
        return _flag(name, text)
    if name in _NUMBERS:
        return number({name: text}, name, 0)
    if name in _LISTS:
        with suppress(ValueError):  # the parser of the option refuses the text
            return [int(each) for each in text.split(",")]
    return text


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise TypeError(f"{name} is true or false, not {text!r}")
    return text == "true"


def size_of(request: object) -> int:
    """Return the number of bytes that a client asks for."""
    size = request.get("bytes") if isinstance(request, dict) else None
    if type(size) is not int or size < 1:
        raise TypeError("a buffer is asked for as {'bytes': N}, at least 1")
    return size


def task_of(request: object, options: dict[str, Any]) -> Task:
    """Return the scan of a client's arrays in buffers; the arrays are not looked for yet."""
    if not isinstance(request, dict) or request.keys() - {"x", "out", "segments"}:
        raise TypeError("the arrays in buffers are x, out, and segments")
    places = {name: _place(request[name]) for name in request if request[name] is not None}
    if not places.keys() >= {"x", "out"}:
        raise TypeError("the arrays in buffers are x, out, and segments")
    return Task(places["x"], places["out"], places.get("segments"), options)


def _place(place: object) -> Place:
    if isinstance(place, dict) and place.keys() == {*Place._fields}:
        shape, offset = place["shape"], place["offset"]
        numbers = [offset, *shape] if isinstance(shape, list) else [None]
        texts = place["path"], place["dtype"]
        if all(type(n) is int and 0 <= n <= _LARGEST for n in numbers) and all(
            isinstance(text, str) for text in texts
        ):
            return Place(texts[0], offset, texts[1], tuple(shape))
    raise TypeError("an array in a buffer is {'path': ..., 'offset': 0, 'dtype': ..., 'shape': []}")


def number(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number of a URL."""
    try:
        return int(query.get(name, default))
    except ValueError:
        raise TypeError(f"{name} is a whole number, not {query[name]!r}") from None


def seconds(query: Mapping[str, str], name: str) -> float:
    """Return a number of seconds of a URL; 0 if there is none."""
    try:
        number_of_seconds = float(query.get(name, "0"))
    except ValueError:
        number_of_seconds = -1.0
    if not 0 <= number_of_seconds < float("inf"):
        raise TypeError(f"{name} is a number of seconds, not {query[name]!r}")
    return number_of_seconds
