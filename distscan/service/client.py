"""The client of a service: arrays in, arrays out; file jobs. It uses neither MPI nor CUDA."""

import os
from collections.abc import Callable, Sequence
from random import uniform
from time import monotonic
from typing import Any, NoReturn, cast

from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..core import dtypes
from . import client_asked, errors, places, protocol
from .client_arrays import Arrays
from .client_job import SILENT, Job
from .client_stop import Stop, stop_of_context
from .errors import BusyError, NoAnswerError, ServiceError
from .transport import LOST, Answer, Transport

_LATER = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds at most before another try, and so on
Path = str | os.PathLike[str]


class Client:
    """A connection to a service: see ``distscan.connect``. Threads may share it."""

    def __init__(
        self,
        address: Path | None,
        token: str | None,
        patience: float,
        timeout: float | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Take the arguments of ``distscan.connect``; connect by the first request.

        ``say`` is told if no service answers for a while.
        """
        self.address = places.address_to_use() if address is None else os.fspath(address)
        token = places.token_to_use(self.address, token)
        head = {"distscan-protocol": str(protocol.VERSION)}
        if token is not None:
            head["authorization"] = f"Bearer {token}"
        self._arrays, self._patience = Arrays(self.request, timeout), patience
        self._say = say
        self._http = Transport(self.address, head, patience)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled: connect in each process")

    def __repr__(self) -> str:
        return f"<Client of {self.address}>"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs go on. Requests of other threads end."""
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
        return self._arrays.empty(client_asked.shape(shape), dtypes.parse(dtype))

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
        window: tuple[int, int] | None = None,
    ) -> NDArray[Any]:
        """Scan an array by the ranks of the service; the arguments are those of ``distscan.scan``.

        ``op`` is one of the operators that have a name. With a service on the same host, a large
        array is copied into memory that both share, and the result out of it.
        """
        form: Any = {"axis": axis, "exclusive": exclusive, "initial": initial, "reverse": reverse}
        form |= {"dtype": dtype, "out": out, "segments": segments, "strategy": strategy}
        form["window"] = window
        return self._arrays.scan(client_asked.scan(x, op, **form))

    def submit(
        self,
        input: Path | Sequence[Path],
        output: Path | None = None,
        op: Any = "sum",
        *,
        key: str | None = None,
        **options: Any,
    ) -> Job:
        """Queue a file job; the arguments are those of ``distscan.scan_file``.

        The files are the service's: paths of this machine are the same there. ``key`` names the
        request: if it is sent again, it is the same job.
        """
        asked = client_asked.job(input, output, op, key, options)
        return Job(self.request, self.request("POST", "/v1/jobs", **asked).json())

    def job(self, number: int) -> Job:
        """Return a job by its number."""
        return Job(self.request, self.request("GET", f"/v1/jobs/{number}").json())

    def jobs(self, most: int = 20) -> list[Job]:
        """Return the newest jobs, the newest first."""
        found = self.request("GET", "/v1/jobs", params={"most": most}).json()
        return [Job(self.request, record) for record in found["jobs"]]

    def request(
        self, method: str, url: str, *, timeout: float | None = SILENT, **given: Any
    ) -> Answer:
        """Send a request until it is answered; raise what the service has raised.

        A service that is busy, or does not answer, is asked again for a while. Every request may be
        sent twice: an array's scan has no effect but its result, and a file job has a key. The
        service may say nothing for ``timeout`` seconds. What else is ``given``, ``Transport`` says.
        """
        end, tries, stop = monotonic() + self._patience, 0, stop_of_context.get() or Stop()
        while True:
            try:
                answer = self._http.request(method, url, timeout=timeout, stop=stop, **given)
                if answer.status != BusyError.status or monotonic() > end:
                    break
            except LOST as error:
                stop.check()
                if monotonic() > end:
                    raise self._lost(error, timeout) from error
                if tries == len(_LATER) - 1:
                    self._say(f"waiting for a service on {self.address}")
            most = _LATER[min(tries, len(_LATER) - 1)]
            stop.sleep(uniform(most / 2, most))  # clients that were refused at once come one by one
            tries += 1
        if answer.status < 300:
            return answer
        raise self._said(answer)

    def _said(self, answer: Answer) -> Exception:
        """Return the exception that an answer describes."""
        try:
            return errors.from_json(answer.json()["error"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return ServiceError(f"{self.address} answers {answer.status}: is it distscan?")

    def _lost(self, error: Exception, timeout: float | None) -> ServiceError:
        """Return the exception for a request without an answer."""
        if isinstance(error, TimeoutError):
            return NoAnswerError(
                f"the service on {self.address} has said nothing for {timeout:g} s; "
                "is it stopped? connect(timeout=...) is the limit of scans"
            )
        return ServiceError(
            f"no service answers on {self.address} ({error}); "
            "start one: mpirun -n 8 python -m distscan serve"
        )
