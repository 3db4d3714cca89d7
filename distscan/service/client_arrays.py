"""Arrays on their way from a client to a service and back: in shared memory, or over the wire."""

from collections.abc import Callable
from io import BytesIO
from typing import Any, cast

import httpx
import numpy as np
from numpy.typing import NDArray

from ..core import dtypes, operators
from .errors import NotFoundError
from .shared import Shared

_SHARED = 1 << 20  # bytes of an array above which shared memory is faster than a request's body


class Arrays:
    """The scans of a client. Threads may share it."""

    def __init__(self, request: Callable[..., httpx.Response]) -> None:
        """``request`` sends a request: method, URL, and what else it has."""
        self._request = request
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

    def scan(
        self,
        x: NDArray[Any],
        segments: NDArray[Any] | None,
        options: dict[str, Any],
        out: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Scan an array; ``options`` are those of the request."""
        shape = x.shape if options.get("axis") is not None else (x.size,)
        if out is not None and (not isinstance(out, np.ndarray) or out.shape != shape):
            raise ValueError(f"out must be a NumPy array of shape {shape}")
        if x.nbytes > _SHARED or self._shared.place(x) is not None:
            try:
                result = self._scan_shared(x, segments, options, out, shape)
            except NotFoundError:  # the service is not the one that had these buffers
                self._shared.forget()
                result = None
            except BaseException:
                self._shared.forget()
                raise
            if result is not None:
                return result
        return self._send(x, segments, options, out)

    def _send(
        self,
        x: NDArray[Any],
        segments: NDArray[Any] | None,
        options: dict[str, Any],
        out: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Send an array, and receive its scan."""
        body, params = BytesIO(), options
        np.save(body, x, allow_pickle=False)
        if segments is not None:
            np.save(body, segments, allow_pickle=False)
            params = params | {"segments": "true"}
        if out is not None:
            params = params | {"out": str(out.dtype)}
        answer = self._request("POST", "/v1/scans", params=params, content=body.getvalue())
        y = cast("NDArray[Any]", np.load(BytesIO(answer.content), allow_pickle=False))
        if out is None:
            return y
        out[...] = y
        return out

    def _scan_shared(
        self,
        x: NDArray[Any],
        segments: NDArray[Any] | None,
        options: dict[str, Any],
        out: NDArray[Any] | None,
        shape: tuple[int, ...],
    ) -> NDArray[Any] | None:
        """Scan an array in memory that the service shares; None if it is on another host.

        The result is never in the place of ``x``: a request that is sent again would scan it again.
        """
        shared = self._shared
        if (moved := shared.hold(x)) is None:
            return None
        flags = None if segments is None else shared.hold(segments)
        there = out is not None and shared.place(out) is not None
        target = out
        if out is None or not there or _overlaps(out, moved, flags):
            target = shared.empty(shape, _result_type(moved, options, out))
        asked = {"x": moved, "out": target, "segments": flags}
        if target is None or (segments is not None and flags is None):
            return None
        places = {
            name: None if array is None else shared.place(array) for name, array in asked.items()
        }
        self._request("POST", "/v1/scans", params=options, json=places)
        if out is not None:
            if target is not out:
                out[...] = target
            return out
        return target if moved is x else target.copy()


def _overlaps(out: NDArray[Any], *inputs: NDArray[Any] | None) -> bool:
    return any(each is not None and np.may_share_memory(out, each) for each in inputs)


def _result_type(
    x: NDArray[Any], options: dict[str, Any], out: NDArray[Any] | None
) -> np.dtype[Any]:
    """Return the type of the result, as the service would choose it."""
    op = operators.resolve(options["op"])
    return dtypes.resolve(op, x.dtype, options.get("dtype"), None if out is None else out.dtype).out
