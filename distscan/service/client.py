"""The client of a service: arrays in, arrays out; file jobs. It uses neither MPI nor CUDA."""

import inspect
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from random import uniform
from time import monotonic
from typing import Any, NoReturn, cast

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..core import arrays, display, dtypes
from ..core.form import Extents, seed_value, shape_of
from ..core.operators import BUILTIN
from ..core.segments import check_shape, check_steps, check_type
from ..fsum.request import FsumRequest
from ..job import formats
from ..job.formats.interface import Location
from ..job.report import Report
from ..options import RunOptions, ScanOptions, ScanRequest, parse
from ..scan import scan
from . import errors, protocol
from .errors import BusyError, CancelledJobError, JobEndedError, NoAnswerError, ServiceError
from .transport import CONNECTION_ERRORS, Answer, Arrays, RemoteScan, Stop, Transport, current_stop

_DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds at most before another try, and so on
SILENCE = 30.0  # seconds until a request without an answer ends; scans have a limit of their own
_DISPLAY = 1.0  # the same of requests for what a notebook shows
_WAIT = 0.5  # seconds of one request that waits for a job
_PATHS = ("segments", "state", "trace")  # options of a job that name files
FilePath = str | os.PathLike[str]
Send = Callable[..., Answer]


def connect(
    address: FilePath | None = None,
    *,
    token: str | None = None,
    patience: float = 10.0,
    timeout: float | None = 600.0,
) -> "Client":
    """Return a client of a service, which runs ``mpirun -n 8 python -m distscan serve``.

    The client needs neither MPI nor CUDA, and no more packages than NumPy. Threads may share it,
    and a forked process may go on with it.

    Parameters
    ----------
    address
        The path of the service's socket, or its URL, such as ``http://127.0.0.1:8000``. None is
        ``DISTSCAN_SERVICE`` of the environment, a path or a URL, or else the default of this user.
    token
        The token of the service, over TCP. None is ``DISTSCAN_TOKEN`` of the environment.
    patience
        Seconds for which an unreachable service is tried again.
    timeout
        Seconds for which the service may say nothing while it scans an array, its wait for larger
        arrays included. None: no limit. For other requests the limit is 30 seconds.

    Returns
    -------
    Client
        ``scan`` scans an array, ``submit`` queues a file job.

    Raises
    ------
    ValueError
        If the token has other characters than printable ones of ASCII.
    ServiceError
        By the first request, if no service answers.
    NoAnswerError
        A ``ServiceError`` and a TimeoutError, by a request, if a service is there but is silent.

    Examples
    --------
    >>> client = distscan.connect()  # doctest: +SKIP
    >>> client.scan([3, 1, 4])  # doctest: +SKIP
    array([3, 4, 8])
    """
    return Client(address, token, patience, timeout)


class Client:
    """A connection to a service: see ``distscan.connect``. Threads may share it."""

    def __init__(
        self,
        address: FilePath | None,
        token: str | None,
        patience: float,
        timeout: float | None = None,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Take the arguments of ``distscan.connect``; connect by the first request.

        ``notify`` is called with a message if no service answers for a while.
        """
        self.address = protocol.address_to_use() if address is None else os.fspath(address)
        token = protocol.token_to_use(self.address, token)
        headers = {"distscan-protocol": str(protocol.VERSION)}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._arrays, self._patience = Arrays(self.request, timeout), patience
        self._notify = notify
        self._http = Transport(self.address, headers, patience)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled: connect in each process")

    def __repr__(self) -> str:
        return f"<Client of {self.address}>"

    def _repr_html_(self) -> str:
        """Return what the service says of itself as a table, for notebooks; it is asked once."""
        try:
            answer = self._http.request("GET", "/v1", timeout=_DISPLAY, stop=Stop())
            facts = answer.json() if answer.status < 300 else {"answer": answer.status}
        except (ServiceError, *CONNECTION_ERRORS, ValueError) as error:  # or it is no JSON
            facts = {"answer": f"none: {error}"}
        rows = [pair for pair in facts.items() if not isinstance(pair[1], list)]
        return display.table(f"Client of {self.address}", rows)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs go on. Requests of other threads end."""
        self._arrays.close()
        self._http.close()

    def about(self) -> dict[str, Any]:
        """Return a description of the service: version, ranks, backend, device."""
        return cast("dict[str, Any]", self.request("GET", "/v1").json())

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
        """Return a new array, as ``numpy.empty`` does, in memory that the service shares.

        ``scan`` copies neither such an array nor its result, which is in shared memory, too. If
        the service is on another host, the array is an ordinary one.
        """
        return self._arrays.empty(shape_of(shape), dtypes.parse(dtype))

    def scan(
        self,
        x: ArrayLike,
        op: Any = "sum",
        *,
        initial: Any = None,
        out: NDArray[Any] | None = None,
        segments: ArrayLike | None = None,
        **options: Any,
    ) -> NDArray[Any]:
        """Scan an array by the ranks of the service; the arguments are those of ``distscan.scan``.

        ``op`` is one of the operators that have a name. ``comm`` and ``threads`` are the service's
        own. With a service on the same host, a large array is copied into memory that both share,
        and the result out of it.
        """
        request = ScanRequest.parse(x, out, segments, initial, {"op": op, **options})
        return self._arrays.scan(_remote_scan(request))

    def submit(
        self,
        input: FilePath | Sequence[FilePath],
        output: FilePath | None = None,
        op: Any = "sum",
        *,
        key: str | None = None,
        **options: Any,
    ) -> "JobHandle":
        """Queue a file job; the arguments are those of ``distscan.scan_file``.

        The files are the service's: paths of this machine are the same there. ``key`` names the
        request: if it is sent again, it is the same job.
        """
        request = _job_request(input, output, op, key, options)
        return JobHandle(self.request, self.request("POST", "/v1/jobs", **request).json())

    def job(self, number: int) -> "JobHandle":
        """Return a job by its number."""
        return JobHandle(self.request, self.request("GET", f"/v1/jobs/{number}").json())

    def jobs(self, most: int = 20) -> "list[JobHandle]":
        """Return the newest jobs, the newest first."""
        answer = self.request("GET", "/v1/jobs", params={"most": most}).json()
        return [JobHandle(self.request, record) for record in answer["jobs"]]

    def request(
        self,
        method: str,
        url: str,
        *,
        timeout: float | None = SILENCE,
        patience: float | None = None,
        **content: Any,
    ) -> Answer:
        """Send a request until it is answered; raise the exception that the service answers with.

        A service that is busy, or does not answer, is asked again for a while. Every request may be
        sent twice: an array's scan has no effect but its result, and a file job has a key. The
        service may say nothing for ``timeout`` seconds. ``patience`` stands for that of the client.
        ``content`` goes to ``Transport.request``.
        """
        patience = self._patience if patience is None else patience
        end, tries, stop = monotonic() + patience, 0, current_stop.get() or Stop()
        while True:
            try:
                answer = self._http.request(method, url, timeout=timeout, stop=stop, **content)
                if answer.status != BusyError.status or monotonic() > end:
                    break
            except CONNECTION_ERRORS as error:
                stop.check()
                if monotonic() > end:
                    raise self._no_answer(error, timeout) from error
                if tries == len(_DELAYS) - 1:
                    self._notify(f"waiting for a service on {self.address}")
            delay = _DELAYS[min(tries, len(_DELAYS) - 1)]
            stop.sleep(uniform(delay / 2, delay))  # clients refused at once come one by one
            tries += 1
        if answer.status < 300:
            return answer
        raise self._exception(answer)

    def _exception(self, answer: Answer) -> Exception:
        """Return the exception that an answer describes."""
        try:
            return errors.from_json(answer.json()["error"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return ServiceError(f"{self.address} answers {answer.status}: is it distscan?")

    def _no_answer(self, error: Exception, timeout: float | None) -> ServiceError:
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


# ---- file jobs, as their client sees them --------------------------------------------------------


class JobHandle:
    """A file job of a service. Threads may share it."""

    def __init__(self, request: Send, record: dict[str, Any]) -> None:
        """``request`` sends a request, as ``Client.request`` does."""
        self._request, self._record = request, record

    def __repr__(self) -> str:
        return f"<Job {self.number}: {self._record['state']}>"

    def _repr_html_(self) -> str:
        """Return the job as a table, for notebooks: as it is now, if the service answers."""
        with suppress(ServiceError):
            self.refresh(silence=_DISPLAY, patience=0)
        return self._table()

    def _table(self) -> str:
        """Return the job as it was when the service was last asked."""
        record = self._record
        request, progress, error = record["request"], record["progress"], record["error"]
        more = record["input_count"] - 1
        rows = [
            ("state", record["state"]),
            ("op", request["op"]),
            ("input", request["inputs"][0] + (f" and {more} more" if more else "")),
            ("output", request["output"]),
        ]
        if progress is not None:
            rows.append(("progress", f"{progress['share']:.0%}, {progress['phase']}"))
        if record["report"] is not None:
            rows.append(("seconds", f"{record['report']['seconds']['all']:.4f}"))
        if error is not None:
            rows.append((error["type"], error["message"]))
        return display.table(f"Job {self.number}", rows)

    @property
    def number(self) -> int:
        """The number of the job in the service."""
        return int(self._record["number"])

    @property
    def state(self) -> str:
        """The state of the job now: "queued", "running", "done", "failed" or "cancelled"."""
        return str(self.refresh()["state"])

    def progress(self) -> tuple[str, int, int] | None:
        """Return the phase, the bytes that are done, and all bytes; None unless the job runs."""
        progress = self.refresh()["progress"]
        return None if progress is None else (progress["phase"], progress["done"], progress["size"])

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> dict[str, Any]:
        """Wait for the end of the job, and return its report, as a dictionary.

        ``progress`` shows a bar, in a terminal and in a notebook, by tqdm. Ctrl-C ends the wait,
        and the job goes on.

        Raises the exception of a job that failed, ``CancelledJobError`` if it was cancelled, and
        TimeoutError if it has not ended after ``timeout`` seconds.
        """
        end = None if timeout is None else monotonic() + timeout
        record = self._record
        with Bar(self.number) if progress else nullcontext() as bar:
            for record in self.updates(end):
                if bar is not None:
                    bar.show(record)
        return outcome(record, timeout)

    def result(self, timeout: float | None = None) -> Report:
        """Wait as ``wait`` does, and return the report as ``distscan.scan_file`` does.

        ``report.output`` is the path of the output. ``report.total`` is as in JSON: NaN and
        infinities are text, complex numbers pairs.
        """
        return Report(**self.wait(timeout))

    def updates(self, end: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield the record of the job, now and then until it has ended.

        ``end`` is a time of ``time.monotonic`` at which this ends, too.
        """
        while True:
            seconds = _WAIT if end is None else max(0.0, min(_WAIT, end - monotonic()))
            record = self.refresh(wait=seconds)
            yield record
            if is_over(record, end):
                return

    def cancel(self) -> bool:
        """Cancel the job: at once if it waits, at its next chunk if it runs.

        Returns False if it had ended: ``state`` says how. A job that runs may also end before its
        next chunk, after True.
        """
        try:
            self._record = self._request("DELETE", f"/v1/jobs/{self.number}").json()
        except JobEndedError:
            return False
        return True

    def refresh(
        self, wait: float = 0, *, silence: float | None = None, patience: float | None = None
    ) -> dict[str, Any]:
        """Ask for the record of the job, at its end or, before that, after ``wait`` seconds.

        The service may say nothing for ``silence`` seconds more; None is 30. A lost connection is
        made again for ``patience`` seconds; None is as long as the client does.
        """
        silence = SILENCE if silence is None else silence
        query = {"params": {"wait": wait}, "timeout": wait + silence, "patience": patience}
        record = dict(self._request("GET", f"/v1/jobs/{self.number}", **query).json())
        self._record = record
        return record


# Functions of a record. Each thread that waits has one of its own: others may refresh the job's.


def is_over(record: dict[str, Any], end: float | None) -> bool:
    """Return whether a job has ended, or the time ``end`` has passed."""
    return record["state"] in protocol.ENDED or (end is not None and monotonic() >= end)


def outcome(record: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    """Return a job's report, or raise as ``JobHandle.wait`` does."""
    number, state = record["number"], record["state"]
    if state == "cancelled":
        raise CancelledJobError(f"job {number} was cancelled")
    if state == "failed":
        raise errors.from_json(record["error"])
    if state != "done":
        raise TimeoutError(f"job {number} is {state} after {timeout} s")
    return cast("dict[str, Any]", record["report"])


class Bar:
    """A progress bar for a whole job, in percent; its context closes it."""

    def __init__(self, number: int) -> None:
        """Show an empty bar for job ``number``; raise ImportError if tqdm is not installed."""
        try:
            from tqdm.auto import tqdm  # noqa: PLC0415 - takes long, and few ask for a bar
        except ImportError as error:
            raise ImportError(
                f"{error}; install it: in a checkout, pip install '.[service]'"
            ) from error
        self._name = f"job {number}"
        percent = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        self._bar = tqdm(desc=self._name, total=1.0, bar_format=percent)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.close()

    def show(self, record: dict[str, Any]) -> None:
        """Show a record of the job: its phase, or its state if it does not run."""
        state, progress = record["state"], record["progress"]
        phase = progress["phase"] if progress else state
        self._bar.set_description_str(f"{self._name}: {phase}", refresh=False)
        ends = {"queued": 0.0, "done": 1.0}
        self._bar.n = progress["share"] if progress else ends.get(state, self._bar.n)
        self._bar.refresh()


def _show_options(method: Any) -> None:
    """Put the options of ``distscan.scan`` into the signature of a method, for ``help``."""
    instance = next(iter(inspect.signature(method).parameters.values()))
    others = [
        each
        for each in inspect.signature(scan).parameters.values()
        if each.name not in {"comm", "threads"}
    ]
    method.__signature__ = inspect.Signature([instance, *others])


_show_options(Client.scan)


# ---- requests, from the arguments of users -------------------------------------------------------


_DEFAULTS = ScanOptions._field_defaults | RunOptions._field_defaults


def _to_json(scan: ScanOptions, run: RunOptions) -> dict[str, Any]:
    """Return the options that are not the default, in a form that JSON has."""
    scan = scan._replace(op=_name(scan.op), initial=_text(scan.initial))
    values = scan.to_json() | run.to_json()
    return {name: value for name, value in values.items() if value != _DEFAULTS[name]}


def _to_query(value: Any) -> str:
    """Return the value of an option as it stands in a URL.

    >>> _to_query([-10, 11]), _to_query(True), _to_query(0)
    ('-10,11', 'true', '0')
    """
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _remote_scan(request: ScanRequest) -> RemoteScan:
    """Check a request as ``distscan.scan`` does, and return it as it is sent."""
    x, out, segments, options, run = request
    if x is None:
        raise TypeError("x is None; a scan takes an array or a sequence")
    array = _on_host("x", x)
    target = None if out is None else _on_host("out", out)
    flags = None if segments is None else _on_host("segments", segments)
    if target is not None:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be an array, not {type(out).__name__}")
        arrays.check_writable(out, target)
    # Along an axis there is a flag or a key for each of its steps.
    steps = flags is not None and options.axis is not None and array.ndim > 0
    if flags is not None and not steps:
        check_shape(flags, array)
    extents = Extents.of(array.shape, options.axis)
    out_dtype = None if target is None else target.dtype
    if options.op == "fsum":
        fsum = FsumRequest.of(
            array.dtype,
            out=out_dtype,
            dtype=options.dtype,
            initial=options.initial,
            window=options.window,
            strategy=run.strategy,
            ranks=1,
        )
        result = fsum.result
    else:
        types = dtypes.resolve(options.op, array.dtype, options.dtype, out_dtype, wide=True)
        seed_value(options.op, types.acc, options.initial, exclusive=options.exclusive)
        result = types.out
    if steps:
        check_steps(flags, array, normalize_axis_index(options.axis or 0, array.ndim))
    elif flags is not None:
        check_type(flags.dtype, extents)
    shape = extents.result_shape
    if target is not None and target.shape != shape:
        raise ValueError(f"out has shape {target.shape}; the result has {shape}")
    query = {name: _to_query(value) for name, value in _to_json(options, run).items()}
    if out_dtype is not None:
        query["out"] = str(out_dtype)
    return RemoteScan(array, flags, out, shape, result, query)


def _job_request(
    input: FilePath | Sequence[FilePath],
    output: FilePath | None,
    op: Any,
    key: str | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return the request for a file job: its JSON, and the header with its key."""
    inputs = [input] if isinstance(input, str | os.PathLike) else list(input)
    if output is None:
        first = Location.parse(inputs[0]).file("input")
        output = first.with_name(formats.scanned_name(first.name))
    paths = {"output": output} | {name: options.pop(name, None) for name in _PATHS}
    request = _to_json(*parse(op=op, **options))
    request["inputs"] = [_whole(path, "input") for path in inputs]
    request |= {name: _whole(path, name) for name, path in paths.items() if path is not None}
    headers = {"idempotency-key": uuid.uuid4().hex if key is None else key}
    return {"json": request, "headers": headers}


def _whole(text: FilePath, name: str) -> str:
    """Return a location with its whole path; ``name`` is that of the argument."""
    location = Location.parse(text)
    return str(location._replace(path=Path(os.path.abspath(location.file(name)))))


def _on_host(name: str, argument: Any) -> NDArray[Any]:
    """Return the NumPy array over the memory of an argument."""
    array = arrays.as_native(argument, name)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is in the memory of a GPU; a service takes arrays of the host")
    return array


def _name(op: Any) -> str:
    """Return the name of an operator of ``ScanOptions``; raise TypeError if it has none."""
    if op == "fsum" or BUILTIN.get(op.name) is op:
        return str(getattr(op, "name", op))
    raise TypeError(f"a service takes operators that have a name, not {op.name}")


def _text(initial: Any) -> str | None:
    """Return a number as text, to its last bit; None stays None."""
    if initial is None:
        return None
    value = np.asarray(initial)
    if value.ndim > 0:
        raise ValueError(f"initial must be one value, not an array of shape {value.shape}")
    number = value.item()
    if isinstance(number, np.generic):  # long double: Python has no such number
        short = complex(number) if value.dtype.kind == "c" else float(number)
        if short != number:
            raise TypeError(f"a service takes an initial of 8 bytes, not {value.dtype}")
        number = short
    return str(int(number) if isinstance(number, bool) else number).strip("()")
