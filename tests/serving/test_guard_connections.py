"""The guard behind a real uvicorn, with both of its parsers: smuggled headers, slow writers, slow readers."""

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from serving.guard.connection import connection_class
from serving.guard.settings import RequestLimits, Times
from tests.serving.guard_stub import Bench, bench, play, until

pytest.importorskip("httptools")
PARSERS = pytest.mark.parametrize("parser", ["httptools", "h11"])
TIMES = {"head_seconds": 0.5, "body_seconds": 0.5, "send_seconds": 0.5, "linger_seconds": 0.5}
WAIT_SECONDS = 30
BODY = b'{"prompt": "a"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@dataclass
class Listening:
    """A server and its address."""

    bench: Bench
    port: int
    server: uvicorn.Server

    async def talk(self, *pieces: bytes, pause: float = 0.0) -> bytes:
        """Send pieces, then read until the server closes or the answer is whole."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                await asyncio.sleep(pause)
            return await asyncio.wait_for(_answer(reader), WAIT_SECONDS)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """Everything until the connection ends, or the body that Content-Length announces."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            received += piece
            head, end, body = received.partition(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if end and lengths and len(body) >= int(lengths[0].split(b":")[1]):
                return received
    return received


@contextlib.asynccontextmanager
async def listening(folder: Path, parser: str, **settings: Any) -> AsyncIterator[Listening]:
    """uvicorn on a free port."""
    settings = {"times": TIMES, **settings}
    async with bench(folder, **settings) as served:
        http = connection_class(RequestLimits(), Times(**settings["times"]), parser)
        app: Any = served.guard
        config = uvicorn.Config(app, http=http, log_level="critical", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            task = asyncio.create_task(server._serve(sockets=[listener]))
            await until(lambda: server.started)
            try:
                yield Listening(served, listener.getsockname()[1], server)
            finally:
                server.should_exit = server.force_exit = True
                await asyncio.wait_for(task, WAIT_SECONDS)


def _has_reached(served: Bench, count: int) -> bool:
    return served.stub.reached == count


@PARSERS
@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 15\r\nContent-Length: 3\r\n\r\n" + BODY,
        HEAD + b"Content-Length: -5\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 0x0f\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY,
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY + b"\r\n0\r\n\r\n",
        HEAD + b"Content-Length : 15\r\n\r\n" + BODY,
        HEAD + b"Host: b\r\nContent-Length: 15\r\n\r\n" + BODY,
        HEAD + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 15\r\n\r\n" + BODY,
        HEAD + b"Bad Name: a\r\nContent-Length: 15\r\n\r\n" + BODY,
        HEAD + b"X-Null: a\x00b\r\nContent-Length: 15\r\n\r\n" + BODY,
        b"nonsense\r\n\r\n",
    ],
    ids=lambda content: content[len(HEAD) : len(HEAD) + 40].decode("latin-1") or "nonsense",
)
def test_smuggled_and_broken_requests_are_refused(tmp_path: Path, parser: str, request_bytes: bytes) -> None:
    async def ask() -> None:
        async with listening(tmp_path, parser) as server:
            answer = await server.talk(request_bytes)
            status = int(answer.split(b" ")[1]) if answer else None
            assert status is not None
            assert 400 <= status < 500 or status == 501
            assert answer.count(b"HTTP/1.1 ") == 1
            assert server.bench.stub.reached == 0
            good = await server.talk(HEAD + b"Content-Length: 15\r\n\r\n" + BODY)
            assert good.startswith(b"HTTP/1.1 200")

    play(ask())


@PARSERS
def test_slow_writers_are_ended_with_a_word(tmp_path: Path, parser: str) -> None:
    async def ask() -> None:
        async with listening(tmp_path, parser) as server:
            slow_body = await server.talk(HEAD + b"Content-Length: 15\r\n\r\n", BODY[:3])
            assert slow_body.startswith(b"HTTP/1.1 408")
            assert json.loads(slow_body.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_timeout"
            slow_head = await server.talk(HEAD, b"X-More: a\r\n")
            assert slow_head.startswith(b"HTTP/1.1 408")
            assert b"head_timeout" in slow_head
            assert await server.talk() == b""  # nothing said at all
            assert server.bench.stub.reached == 0
            await until(lambda: not server.server.server_state.connections)

    play(ask())


@PARSERS
def test_head_without_end_is_refused(tmp_path: Path, parser: str) -> None:
    async def ask() -> None:
        async with listening(tmp_path, parser) as server:
            answer = await server.talk(HEAD + b"X-Long: ", *[b"a" * 20_000] * 3, pause=0.02)
            assert answer.startswith(b"HTTP/1.1 431")
            whole = await server.talk(HEAD + b"X-Long: " + b"a" * 35_000 + b"\r\nContent-Length: 15\r\n\r\n" + BODY)
            assert whole.startswith(b"HTTP/1.1 431")
            assert server.bench.stub.reached == 0

    play(ask())


@PARSERS
def test_refusal_of_a_large_body_arrives(tmp_path: Path, parser: str) -> None:
    async def ask() -> None:
        async with listening(tmp_path, parser) as server:
            large = b"x" * 10_000_000
            answer = await server.talk(HEAD + b"Content-Length: 10000000\r\n\r\n", large)
            assert answer.startswith(b"HTTP/1.1 413")
            assert b"connection: close" in answer.lower()
            chunks = [b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n"] * 6
            answer = await server.talk(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *chunks)
            assert answer.startswith(b"HTTP/1.1 413")

    play(ask())


@PARSERS
def test_connection_is_kept_after_a_refusal_that_was_read(tmp_path: Path, parser: str) -> None:
    async def ask() -> None:
        async with listening(tmp_path, parser) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for body in (b'{"prompt": ""}', BODY):
                writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                answer = await asyncio.wait_for(_answer(reader), WAIT_SECONDS)
            assert answer.startswith(b"HTTP/1.1 200")
            writer.close()

    play(ask())


@PARSERS
def test_slow_reader_loses_its_request_and_its_connection(tmp_path: Path, parser: str) -> None:
    async def ask() -> None:
        async with listening(tmp_path, parser) as server:
            server.bench.stub.piece = "x" * 500_000
            body = b'{"prompt": "a", "stream": true, "max_tokens": 100}'
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", server.port))
                client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                await until(lambda: server.bench.stub.ended == 1)
                await until(lambda: not server.server.server_state.connections)
            assert server.bench.guard.admission.running_requests == 0
            await until(lambda: bool(server.bench.lines()))
            assert server.bench.lines()[0]["reason"] in ("slow_reader", "client_gone")  # the kernel may be first

    play(ask())


@PARSERS
def test_client_that_disconnects_ends_its_generation(tmp_path: Path, parser: str) -> None:
    async def ask() -> None:
        async with listening(tmp_path, parser) as server:
            server.bench.stub.gate = asyncio.Event()
            for count, stream in enumerate((b"true", b"false"), 1):
                body = b'{"prompt": "a", "stream": %s}' % stream
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                await until(lambda: server.bench.guard.requests == 1)
                await until(functools.partial(_has_reached, server.bench, count))
                writer.close()
                await until(lambda: server.bench.guard.requests == 0)
            assert server.bench.stub.ended == 2
            assert [line["client_gone"] for line in server.bench.lines()] == [True, True]

    play(ask())
