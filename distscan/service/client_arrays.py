"""Arrays on their way from a client to a service and back: in shared memory, or over the wire."""

from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from . import protocol
from .errors import NotFoundError
from .shared import Shared
from .transport import Answer

_SHARED = 1 << 20  # bytes of an array above which shared memory is faster than a request's body


class Asked(NamedTuple):
    """What a client asks for: a scan of ``x`` into ``out``, or into a new array."""

    x: NDArray[Any]
    segments: NDArray[Any] | None
    out: NDArray[Any] | None
    options: dict[str, Any]  # of the request


class Arrays:
    """The scans of a client. Threads may share it."""

    def __init__(self, request: Callable[..., Answer], timeout: float | None) -> None:
        """``request`` sends a request: method, URL, and what else it has.

        ``timeout``: seconds for which the service may say nothing while it scans.
        """
        self._request, self._timeout = request, timeout
        self._shared = Shared(
            lambda size: dict(request("POST", "/v1/buffers", json={"bytes": size}).json())
        )

    def close(self) -> None:
        """Let go of shared memory in which no array is."""
        self._shared.close()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a new array, in shared memory if there is any."""
        found = self._shared.empty(shape, dtype)
        return np.empty(shape, dtype) if found is None else found

    def scan(self, asked: Asked) -> NDArray[Any]:
        """Scan an array."""
        if asked.x.nbytes > _SHARED or self._shared.place(asked.x) is not None:
            try:
                result = self._scan_shared(asked)
            except NotFoundError:  # the service is not the one that had these buffers
                self._shared.forget()
                result = None
            except BaseException:
                self._shared.forget()
                raise
            if result is not None:
                return result
        return self._send(asked)

    def _send(self, asked: Asked) -> NDArray[Any]:
        """Send an array, and receive its scan."""
        body, params = BytesIO(), asked.options
        np.save(body, asked.x, allow_pickle=False)
        if asked.segments is not None:
            np.save(body, asked.segments, allow_pickle=False)
            params = params | {"segments": "true"}
        answer = self._ask(params, content=body.getvalue())
        y = cast("NDArray[Any]", np.load(BytesIO(answer.content), allow_pickle=False))
        if asked.out is None:
            return y
        asked.out[...] = y
        return asked.out

    def _scan_shared(self, asked: Asked) -> NDArray[Any] | None:
        """Scan an array in memory that the service shares; None if it is on another host.

        The result is never in the place of ``x``: a request that is sent again would scan it again.
        """
        shared, out, options = self._shared, asked.out, asked.options
        x = shared.hold(asked.x)
        segments = None if asked.segments is None else shared.hold(asked.segments)
        if x is None or (asked.segments is not None and segments is None):
            return None
        target = out
        if out is None or shared.place(out) is None or _overlaps(out, x, segments):
            shape, dtype = protocol.result_shape(x, options), protocol.result_type(x, options)
            target = shared.empty(shape, dtype)
        if target is None:
            return None
        places = {"x": shared.place(x), "out": shared.place(target)}
        if segments is not None:
            places["segments"] = shared.place(segments)
        self._ask(options, json=places)
        if out is not None:
            if target is not out:
                out[...] = target
            return out
        return target if x is asked.x else target.copy()

    def _ask(self, params: dict[str, Any], **body: Any) -> Answer:
        return self._request("POST", "/v1/scans", params=params, timeout=self._timeout, **body)


def _overlaps(out: NDArray[Any], *inputs: NDArray[Any] | None) -> bool:
    return any(each is not None and np.may_share_memory(out, each) for each in inputs)
