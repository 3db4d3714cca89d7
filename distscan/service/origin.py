"""Requests that a browser sends for other web pages are refused.

A page of any site may have a browser send requests to services on the browser's machine. Headers
that no page can change say who asked::

    Origin: https://example.org    a page of another site did
    Sec-Fetch-Site: cross-site     likewise, in requests that have no Origin

The owner of a name may also let it lead to 127.0.0.1. The browser then takes this service for a
part of the owner's site, so these headers do not help. But ``Host`` is then the owner's name::

    Host: example.org              none of this machine's own names

Over a Unix socket, clients name any host. Only a browser names one with a dot: such as one that
comes by ``ssh -L 8000:/path/to/socket``.
"""

import ipaddress
import re
from contextlib import suppress
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ForbiddenError
from .guard import Guard

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
    found = _HOST.fullmatch(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is no host, such as scans.example.org or scans.example.org:81")
    port = None if found[2] is None else int(found[2])
    return Host(found[1].rstrip("."), None if port in {80, 443} else port)


class Protected:
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
        if host is not None and not self._is_own(host):  # a browser always names one
            raise ForbiddenError(
                f"this service is not {host!r}; behind a reverse proxy, it needs --allow-host NAME"
            )
        if origin is not None and not self._is_own_page(origin, host):
            raise ForbiddenError(f"a page of {origin!r} may not use this service")
        site = headers.get("sec-fetch-site", "none")
        # Another page may have a link to this service's page, which holds no data.
        link = (method, path, headers.get("sec-fetch-mode")) == ("GET", "/", "navigate")
        if site not in {"same-origin", "none"} and not link:
            raise ForbiddenError(f"a page of another site may not use this service ({site!r})")

    def _is_own(self, said: str) -> bool:
        """Return whether a host is one of the names of this service."""
        try:
            host = host_of(said)
        except ValueError:
            return False
        if host in self._names.allowed or host.name.rpartition(".")[2] == "localhost":
            return True
        with suppress(ValueError):
            return ipaddress.ip_address(host.name.strip("[]")).is_loopback
        return not self._names.over_tcp and "." not in host.name

    def _is_own_page(self, origin: str, host: str | None) -> bool:
        """Return whether a page is of this service: of the host that the request names."""
        scheme, _, said = origin.partition("://")
        own = set(self._names.allowed) if host is None else {host_of(host), *self._names.allowed}
        with suppress(ValueError):
            return scheme in {"http", "https"} and host_of(said) in own
        return False
