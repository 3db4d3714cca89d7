"""Clients for asyncio, as tests use them."""

import asyncio

import numpy as np

import distscan

LARGE = 300_000  # elements of which a client makes more than a MiB


def run(service, work, **given):
    """Run ``work(client)`` in an event loop of its own."""

    async def main():
        async with distscan.connect_async(service.address, **given) as client:
            return await work(client)

    return asyncio.run(main())


def long_file(folder, elements=1 << 27):
    np.lib.format.open_memmap(folder / "long.npy", "w+", "f8", (elements,))
    return folder / "long.npy"
