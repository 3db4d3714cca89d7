"""Stores that all ranks of this machine share: folders behind fsspec, and a server of HTTP."""

import asyncio
import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem


class Plain(LocalFileSystem):
    """A store that neither renames nor is asynchronous; a part of an object can be seen."""

    protocol = "plain"
    put_file = fsspec.AbstractFileSystem.put_file
    mv = fsspec.AbstractFileSystem.mv

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(path.removeprefix("plain://"))


class Bucket(AsyncFileSystem):
    """A store as S3 is: objects appear when they are whole, with tags, which it remembers."""

    protocol, root_marker = "bucket", "/"
    requests: ClassVar = []  # the ranges that were read, as (start, end)

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.known = {}

    def invalidate_cache(self, path=None):
        self.known.clear()

    async def _info(self, path, **_):
        if path not in self.known:
            self.known[path] = self.look(path)
        return self.known[path]

    def look(self, path):
        try:
            status = os.stat(path)
        except NotADirectoryError:
            raise FileNotFoundError(path) from None
        if os.path.isdir(path):
            return {"name": path, "type": "directory", "size": 0}
        return {"name": path, "type": "file", "size": status.st_size, "ETag": self.tag(path)}

    def tag(self, path):
        return f"{os.stat(path).st_mtime_ns}"

    async def _cat_file(self, path, start=None, end=None, **_):
        self.requests.append((start, end))
        await self.wait()
        with open(self.at("read", path), "rb") as file:
            file.seek(*((start, 2) if start and start < 0 else (start or 0, 0)))
            return file.read() if end is None else file.read(end - (start or 0))

    async def _pipe_file(self, path, value, **_):
        await self.wait()
        path = self.at("write", path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        new = f"{path}.{os.urandom(4).hex()}.new"
        Path(new).write_bytes(value)
        os.replace(new, path)

    async def _ls(self, path, detail=True, **_):
        """Folders are there if there is an object in them."""
        try:
            names = sorted(os.listdir(path))
        except OSError:
            raise FileNotFoundError(path) from None
        names = [f"{path}/{name}" for name in names if not name.endswith(".new")]
        names = [name for name in names if has_file(name)]
        return [self.look(name) for name in names] if detail else names

    async def _put_file(self, lpath, rpath, mode="overwrite", callback=None, **_):
        data, new = Path(lpath).read_bytes(), f"{rpath}.{os.getpid()}"
        with open(new, "wb") as file:
            try:
                for low in range(0, len(data), self.piece()):
                    file.write(data[low : low + self.piece()])
                    callback.relative_update(len(data[low : low + self.piece()]))
                    await asyncio.sleep(0.001)
                if mode == "create" and os.path.exists(rpath):
                    raise FileExistsError(rpath)
                os.replace(new, rpath)
            finally:
                Path(new).unlink(missing_ok=True)

    async def wait(self):
        """Let a test count requests."""

    def piece(self):
        return 1 << 20

    async def _rm_file(self, path, **_):
        os.unlink(self.at("remove", path))

    def at(self, step, path):
        """Let a test see, change or refuse the path of an object that is read, written, removed."""
        return path


def has_file(path):
    return os.path.isfile(path) or any(names for _, _, names in os.walk(path))


for store in (Plain, Bucket):
    fsspec.register_implementation(store.protocol, store, clobber=True)


@contextmanager
def http(folder, *, ranges=True):
    """Serve a folder by HTTP, in ranges of bytes or whole; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = folder / self.path[1:].partition("?")[0]
            if not path.is_file():
                self.send_error(404)
                return
            data, wanted = path.read_bytes(), self.headers.get("Range")
            if ranges and wanted:
                low, high = map(int, wanted.removeprefix("bytes=").split("-"))
                part = data[low : high + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {low}-{high}/{len(data)}")
            else:
                part = data
                self.send_response(200)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(part)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # of all ranks at once

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


# ---- S3 itself, where its packages are installed -------------------------------------------------


def s3(comm, monkeypatch):
    """Yield the URL of a bucket of a server on this machine: a fixture."""
    pytest.importorskip("s3fs", reason="no s3fs")
    moto = pytest.importorskip("moto.server", reason="no moto")
    server = moto.ThreadedMotoServer(port=0) if comm.rank == 0 else None
    if server is not None:
        server.start()
    port = comm.bcast(server and server.get_host_and_port()[1])
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "none")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://127.0.0.1:{port}"})
    if comm.rank == 0:
        fsspec.filesystem("s3").mkdir(f"numbers-{port}")
    comm.Barrier()
    yield f"s3://numbers-{port}"  # a server of this process knows the buckets of the last one
    comm.Barrier()
    if server is not None:
        server.stop()
