"""The client of a service: arrays in, arrays out; file jobs. It uses neither MPI nor CUDA."""

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..core import dtypes, operators
from ..core.operators import BUILTIN
from . import errors, places, protocol
from .client_arrays import Arrays, Asked
from .client_job import Job
from .errors import BusyError, ServiceError
from .transport import LOST, Answer, Transport

_LATER = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds before another try to reach the service, and so on
_Path = str | os.PathLike[str]


class Client:
    """A connection to a service: see ``distscan.connect``. Threads may share it."""

    def __init__(self, address: _Path | None, token: str | None, patience: float) -> None:
        where = str(places.socket_to_use()) if address is None else os.fspath(address)
        self.address, self._patience = where, patience
        head = {"distscan-protocol": str(protocol.VERSION)}
        if token is not None:
            head["authorization"] = f"Bearer {token}"
        self._arrays = Arrays(self.request)
        self._http = Transport(where, head, patience)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs go on."""
        self._arrays.close()
        self._http.close()

    def about(self) -> dict[str, Any]:
        """Return what the service says of itself: version, ranks, backend, device."""
        return cast("dict[str, Any]", self.request("GET", "/v1").json())

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
        """Return a new array, as ``numpy.empty`` does, in memory that the service shares.

        ``scan`` copies neither such an array nor its result, which is in shared memory, too. If
        the service is on another host, the array is an ordinary one.
        """
        whole = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._arrays.empty(whole, dtypes.parse(dtype))

    def scan(
        self,
        x: ArrayLike,
        op: Any = "sum",
        *,
        axis: int | None = None,
        exclusive: bool = False,
        initial: Any = None,
        reverse: bool = False,
        dtype: DTypeLike | None = None,
        out: NDArray[Any] | None = None,
        segments: ArrayLike | None = None,
        strategy: str = "auto",
    ) -> NDArray[Any]:
        """Scan an array by the ranks of the service; the arguments are those of ``distscan.scan``.

        ``op`` is one of the operators that have a name. With a service on the same host, a large
        array is copied into memory that both share, and the result out of it.
        """
        given = {
            "op": _name(op),
            "axis": axis,
            "exclusive": "true" if exclusive else None,
            "initial": None if initial is None else _text(initial),
            "reverse": "true" if reverse else None,
            "dtype": None if dtype is None else str(dtypes.parse(dtype)),
            "strategy": strategy,
        }
        options = {name: value for name, value in given.items() if value is not None}
        array, flags = np.asanyarray(x), None if segments is None else np.asanyarray(segments)
        if out is not None:
            shape = protocol.result_shape(array, options)
            if not isinstance(out, np.ndarray) or out.shape != shape:
                raise ValueError(f"out must be a NumPy array of shape {shape}")
            options["out"] = str(out.dtype)
        return self._arrays.scan(Asked(array, flags, out, options))

    def submit(
        self,
        input: _Path | Sequence[_Path],
        output: _Path | None = None,
        op: Any = "sum",
        *,
        key: str | None = None,
        **options: Any,
    ) -> Job:
        """Queue a file job; the arguments are those of ``distscan.scan_file``.

        The files are the service's: paths of this machine are the same there. ``key`` names the
        request: if it is sent again, it is the same job.
        """
        several = [input] if isinstance(input, str | os.PathLike) else list(input)
        if output is None:
            first = Path(several[0])
            output = first.with_name(f"{first.name.removesuffix('.npy')}.scan.npy")
        request = options | {
            "inputs": [os.path.abspath(path) for path in several],
            "output": os.path.abspath(output),
            "op": _name(op),
        }
        for name in ("segments", "state", "trace"):
            if request.get(name) is not None:
                request[name] = os.path.abspath(request[name])
        for name in ("dtype", "raw"):
            if request.get(name) is not None:
                request[name] = str(dtypes.parse(request[name]))
        if request.get("initial") is not None:
            request["initial"] = _text(request["initial"])
        head = {"idempotency-key": uuid.uuid4().hex if key is None else key}
        return Job(
            self.request, self.request("POST", "/v1/jobs", json=request, headers=head).json()
        )

    def job(self, number: int) -> Job:
        """Return a job by its number."""
        return Job(self.request, self.request("GET", f"/v1/jobs/{number}").json())

    def jobs(self, most: int = 20) -> list[Job]:
        """Return the newest jobs, the newest first."""
        found = self.request("GET", "/v1/jobs", params={"most": most}).json()
        return [Job(self.request, record) for record in found["jobs"]]

    def request(self, method: str, url: str, **given: Any) -> Answer:
        """Send a request until it is answered; raise what the service has raised.

        A service that is busy, or does not answer, is asked again for a while. Every request may be
        sent twice: an array's scan has no effect but its result, and a file job has a key.
        """
        end, tries = monotonic() + self._patience, 0
        while True:
            try:
                answer = self._http.request(method, url, **given)
                if answer.status != BusyError.status or monotonic() > end:
                    break
            except LOST as error:
                if monotonic() > end:
                    raise ServiceError(
                        f"no service answers on {self.address} ({error}); "
                        "start one: mpirun -n 8 python -m distscan serve"
                    ) from error
            sleep(_LATER[min(tries, len(_LATER) - 1)])
            tries += 1
        if answer.status < 300:
            return answer
        try:
            said = answer.json()["error"]
        except (ValueError, KeyError, TypeError):
            said = {"message": f"{self.address} answers {answer.status}: is it distscan?"}
        raise errors.from_json(said)


def _name(op: Any) -> str:
    """Return the name of an operator that has one."""
    if isinstance(op, str):
        return op
    resolved = operators.resolve(op)
    if BUILTIN.get(resolved.name) is not resolved:
        raise TypeError(f"a service takes operators that have a name, not {resolved.name}")
    return resolved.name


def _text(number: Any) -> str:
    """Return a number as text, to its last bit."""
    if isinstance(number, str):
        return number
    value = np.asarray(number)
    if value.ndim > 0:
        raise TypeError("a service takes one number as initial")
    return str(value.item()) if value.dtype.kind != "c" else str(complex(value)).strip("()")
