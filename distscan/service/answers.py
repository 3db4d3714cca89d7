"""Answers in pieces, which hold something until they have been sent."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Streamed(StreamingResponse):
    """An answer in pieces. It lets go of what it holds at its end, and if its client has gone."""

    def __init__(self, pieces: AsyncIterator[bytes], held: ExitStack, **given: Any) -> None:
        super().__init__(pieces, **given)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._held:
            await super().__call__(scope, receive, send)
