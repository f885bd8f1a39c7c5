"""The verb `serve`: socket, engine, HTTP, and an orderly end."""

import argparse
import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from foundation.errors import UserError
from serving.app import ServerState, build_app
from serving.engine import engine_version, parse_options, prepare_environment
from serving.model_folder import inspect_model
from serving.processes import private_temporary_folder
from serving.supervisor import Supervisor

_DRAIN_SECONDS = 30

# Given the server's URL, the model's name and a key, it does its work through HTTP.
Client = Callable[[str, str, str | None], Awaitable[object]]


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tensor_parallel_size: int | None = None,
    engine_options: Sequence[str] = (),
    engine_restarts: int = 3,
    client: Client | None = None,
) -> None:
    """Serve `model` until SIGTERM or Ctrl-C; with a `client`, called once the server is ready, until that is done.

    On a signal it stops accepting, finishes what runs (30 s at most), ends the engine and returns.
    An engine that dies or hangs is started again, `engine_restarts` times within ten minutes.
    Raises UserError when the folder, the port or an option will not do, and when the engine is not worth restarting.
    """
    folder = inspect_model(model, tensor_parallel_size)
    version, cpu = engine_version()
    with listening_socket(host, port) as listener, private_temporary_folder():
        prepare_environment(folder.tensor_parallel_size, engine_options, cpu=cpu)
        options = parse_options(folder, engine_options, cpu=cpu)
        state = ServerState(model=options.served_model_name[0], engine_version=version)
        asyncio.run(_Service(state, listener, options, engine_restarts).run(client))


@contextlib.contextmanager
def listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to `host`:`port`, so that a taken port is known before the engine is loaded.

    Raises UserError in one line.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
        yield listener


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: they would end the process with the signal's status."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Service:
    """One run of the server."""

    def __init__(self, state: ServerState, listener: socket.socket, options: argparse.Namespace, restarts: int) -> None:
        host, port = listener.getsockname()[:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._state = state
        self._listener = listener
        self._options = options
        self._stop = asyncio.Event()
        self._supervisor = Supervisor(state, options, restarts, self._report)
        config = uvicorn.Config(
            build_app(state), log_level="warning", lifespan="off", timeout_graceful_shutdown=_DRAIN_SECONDS
        )
        self._http = _Server(config)

    async def run(self, client: Client | None) -> None:
        """Answer HTTP from the start, load, serve, and leave nothing running."""
        with self._signals():
            http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
            work = asyncio.create_task(self._work(client))
            stop = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({http, work, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._state.draining = True
                self._http.should_exit = True
                if client is not None:
                    work.cancel()  # its own request would else be waited for
                await http
                stop.cancel()
                work.cancel()
                await asyncio.wait({work, stop})
                await self._supervisor.end()
        if not work.cancelled() and not self._stop.is_set():
            work.result()  # raises what went wrong

    async def _work(self, client: Client | None) -> None:
        self._report(f"loading {self._state.model}")
        await self._supervisor.start()
        self._report(f"serving {self._state.model} at {self._url}")
        if client is None:
            await self._supervisor.watch()
        else:
            keys = self._options.api_key or [None]
            await client(self._url, self._state.model, keys[0])

    @staticmethod
    def _report(line: str) -> None:
        print(f"mtnlg: {line}", flush=True)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn SIGTERM and SIGINT into a stop; a second one ends open connections.

        Not `loop.add_signal_handler`: its wake-up file is inherited by forked workers, and a signal to
        one of them would then stop the server.
        """
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: FrameType | None) -> None:
            self._http.force_exit = self._stop.is_set()
            loop.call_soon_threadsafe(self._stop.set)

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
