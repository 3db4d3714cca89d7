"""``connect``: a client of a service."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .service.client import Client
    from .service.client_async import AsyncClient


def connect(
    address: str | os.PathLike[str] | None = None,
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
        What the service asks for over TCP. None is ``DISTSCAN_TOKEN`` of the environment.
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
    from .service.client import Client  # noqa: PLC0415 - most programs have no service

    return Client(address, token, patience, timeout)


def connect_async(
    address: str | os.PathLike[str] | None = None,
    *,
    token: str | None = None,
    patience: float = 10.0,
    timeout: float | None = 600.0,
) -> "AsyncClient":
    """Return a client of a service for asyncio: its methods are those of ``connect``, to await.

    Requests wait in threads of the client's own. Waits for jobs take none. A task that is cancelled
    ends at once, and so does its request; jobs go on.

    Parameters
    ----------
    address, token, patience, timeout
        As in ``connect``.

    Returns
    -------
    AsyncClient
        ``await client.scan(x)`` scans an array, ``await client.submit(...)`` queues a file job.

    Raises
    ------
    ServiceError, NoAnswerError
        As ``connect``.

    Examples
    --------
    >>> async def main():
    ...     async with distscan.connect_async() as client:
    ...         job = await client.submit("input.npy")
    ...         print(await client.scan([3, 1, 4]))
    ...         await job.wait()
    >>> asyncio.run(main())  # doctest: +SKIP
    [3 4 8]
    """
    from .service.client_async import AsyncClient  # noqa: PLC0415 - most programs have no service

    return AsyncClient(connect(address, token=token, patience=patience, timeout=timeout))
