"""The verb `serve`: socket, engine, HTTP, and an orderly end."""

import argparse
import asyncio
import contextlib
import ipaddress
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from foundation.errors import UserError
from serving.app import ServerState, build_app
from serving.engine import engine_version, parse_options, prepare_environment
from serving.guard.connection import connection_class
from serving.guard.guard import guarded
from serving.guard.settings import GuardSettings
from serving.model_folder import inspect_model
from serving.processes import private_temporary_folder
from serving.supervisor import Supervisor

_DRAIN_SECONDS = 30
_LOOK_SECONDS = 0.05
# Open connections; what comes beyond is refused by uvicorn itself.
_CONNECTIONS = 4096

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
    guard: GuardSettings | None = None,
    client: Client | None = None,
) -> None:
    """Serve `model` until SIGTERM or Ctrl-C; with a `client`, called once the server is ready, until that is done.

    On a signal it stops accepting, finishes what runs (30 s at most), ends the engine and returns.
    `guard` bounds what is let in and says who may come.
    An engine that dies or hangs is started again, `engine_restarts` times within ten minutes.
    Raises UserError when the folder, the port or an option will not do, and when the engine is not worth restarting.
    """
    folder = inspect_model(model, tensor_parallel_size)
    version, cpu = engine_version()
    with listening_socket(host, port) as listener, private_temporary_folder():
        prepare_environment(folder.tensor_parallel_size, engine_options, cpu=cpu)
        options = parse_options(folder, engine_options, cpu=cpu)
        state = ServerState(model=options.served_model_name[0], engine_version=version)
        asyncio.run(_Service(state, listener, options, engine_restarts, guard or GuardSettings()).run(client))


def check_address(host: str, *, has_keys: bool, anonymous: bool) -> None:
    """Raise UserError when others than this machine could use the model without a key, unless that is wanted."""
    here = host == "localhost"
    with contextlib.suppress(ValueError):
        here = here or ipaddress.ip_address(host).is_loopback
    if not (here or has_keys or anonymous):
        raise UserError(f"{host} is open to others: add --keys FILE (mtnlg keys add), or --anonymous to let anyone in")


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

    def __init__(
        self,
        state: ServerState,
        listener: socket.socket,
        options: argparse.Namespace,
        restarts: int,
        settings: GuardSettings,
    ) -> None:
        host, port = listener.getsockname()[:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._state = state
        self._listener = listener
        self._options = options
        self._stop = asyncio.Event()
        self._supervisor = Supervisor(state, options, restarts, self._report)
        self._guard = guarded(build_app(state), settings, state)
        state.metrics = self._guard.metrics_text
        config = uvicorn.Config(
            self._guard,
            http=connection_class(settings.limits, settings.times),
            log_level="warning",
            lifespan="off",
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
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
                if client is not None:
                    work.cancel()  # its own request would else be waited for
                await self._drain(http)
                stop.cancel()
                work.cancel()
                await asyncio.wait({work, stop})
                await self._supervisor.end()
                self._guard.close()
        if not work.cancelled() and not self._stop.is_set():
            work.result()  # raises what went wrong

    async def _drain(self, http: asyncio.Task[None]) -> None:
        """Finish what runs, and meanwhile tell new requests to go elsewhere; then close the socket."""
        started = time.monotonic()
        while self._guard.requests and time.monotonic() - started < _DRAIN_SECONDS:
            if http.done() or self._http.force_exit:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        self._http.should_exit = True
        await http

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
