"""The page of a service: static files. They hold no data, so they need no token."""

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

# The page takes nothing from elsewhere, and no other page may show it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
_HEADERS = {
    "cache-control": "no-store",  # or a browser might mix files of two versions
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _Files(StaticFiles):
    """Files, with the headers that protect the page."""

    def file_response(self, *args: Any, **given: Any) -> Response:
        """Return the answer for a file that is there."""
        answer = super().file_response(*args, **given)
        answer.headers.update(_HEADERS)
        return answer


def routes() -> list[BaseRoute]:
    """Return the routes of the page: ``/``, and what is in the folder ``page``."""
    # An installer may have made links of the files.
    files = _Files(directory=Path(__file__).with_name("page"), follow_symlink=True)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    async def icon(request: Request) -> Response:  # which browsers ask for beside any answer
        return await files.get_response("icon.svg", request.scope)

    return [Route("/", index), Route("/favicon.ico", icon), Mount("/page", files)]
