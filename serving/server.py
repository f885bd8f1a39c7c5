"""The verb `serve`: socket, engine, HTTP, and an orderly end."""

import argparse
import asyncio
import contextlib
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from foundation.errors import UserError
from serving.app import ServerState, add_metrics, build_app
from serving.engine import run_workers
from serving.engine_options import engine_version, parse_options, prepare_environment, silence_warnings
from serving.guard.connection import connection_class
from serving.guard.guard import guarded
from serving.guard.head import is_loopback
from serving.guard.observer import Observer
from serving.guard.settings import GuardSettings
from serving.model_folder import ParallelSizes, inspect_model
from serving.processes import end_processes, engine_processes, private_temporary_folder
from serving.supervisor import Supervisor
from serving.tracing import tracing

_DRAIN_SECONDS = 30
_GRACE_SECONDS = 5.0
_BREAK_OFF_SECONDS = 6  # for requests that are broken off to end; the engine is given five of them
_HURRY_SECONDS = 1.0
_LOOK_SECONDS = 0.05
# Open connections; what comes beyond is refused by uvicorn itself.
_CONNECTIONS = 4096
# Longer than proxies keep theirs, and than a Retry-After: who uses a connection just as it is closed gets an error.
_KEEP_ALIVE_SECONDS = 75
_OPEN_FILES = 2 * _CONNECTIONS

# Given the server's URL, the model's name and a key, it does its work through HTTP.
Client = Callable[[str, str, str | None], Awaitable[object]]


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    sizes: ParallelSizes | None = None,
    engine_options: Sequence[str] = (),
    engine_restarts: int = 3,
    guard: GuardSettings | None = None,
    anonymous: bool = False,
    client: Client | None = None,
) -> None:
    """Serve `model` until SIGTERM or Ctrl-C; with a `client`, called once the server is ready, until that is done.

    On a signal it stops accepting, finishes what runs (30 s at most), ends the engine and returns.
    A training run is converted first, with the port taken.
    `guard` bounds what is let in and says who may come. Without keys, and not `anonymous`, a server that listens on
    this machine only takes requests to this machine's own names only.
    An engine that dies or hangs is started again, `engine_restarts` times within ten minutes.
    Raises UserError when the folder, the port or an option will not do, and when the engine is not worth restarting.
    """
    version, _ = engine_version()
    _allow_open_files()
    with _ending_early(), listening_socket(host, port) as listener, private_temporary_folder():
        options = _engine_options(model, sizes, engine_options)
        state = ServerState(model=options.served_model_name[0], engine_version=version)
        with tracing(options) as observer:
            settings = guard or GuardSettings()
            has_keys = settings.keys is not None or bool(options.api_key)
            local_only = is_loopback(host) and not has_keys and not anonymous
            service = _Service(state, listener, options, engine_restarts, settings, observer, local_only=local_only)
            with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:  # uvloop where there is one
                runner.run(service.run(client))


def run_node(model: Path, *, sizes: ParallelSizes | None = None, engine_options: Sequence[str] = ()) -> None:
    """Run this node's workers of a model that the first node serves, until SIGTERM or Ctrl-C. It answers no HTTP.

    Raises UserError when the folder or an option will not do, and when a worker ends by itself.
    """
    with _ending_early(), private_temporary_folder():
        options = _engine_options(model, sizes, engine_options)
        try:
            run_workers(options)
        finally:
            end_processes(engine_processes(), grace_seconds=_GRACE_SECONDS)


def _engine_options(model: Path, sizes: ParallelSizes | None, given: Sequence[str]) -> argparse.Namespace:
    """The engine's options for a model, and the environment that it needs."""
    _, cpu = engine_version()
    silence_warnings()
    folder = inspect_model(model, sizes or ParallelSizes(), given)
    prepare_environment(folder.workers, given, cpu=cpu)
    return parse_options(folder, given, cpu=cpu)


def check_address(host: str, *, has_keys: bool, anonymous: bool) -> None:
    """Raise UserError when others than this machine could use the model without a key, unless that is wanted."""
    if not (is_loopback(host) or has_keys or anonymous):
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


@contextlib.contextmanager
def _ending_early() -> Iterator[None]:
    """Let SIGTERM end what there is while nothing is served yet; by itself Python would leave its files behind."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _allow_open_files() -> None:
    """Take as many open files as there may be connections: the usual bound of 1024 is below that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
        observer: Observer | None = None,
        *,
        local_only: bool = False,
    ) -> None:
        host, port = listener.getsockname()[:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._state = state
        self._listener = listener
        self._options = options
        self._stop = asyncio.Event()
        self._supervisor = Supervisor(state, options, restarts, self._report)
        self._guard = guarded(build_app(state), settings, state, observer, local_only=local_only)
        add_metrics(state, self._guard.metrics)
        state.metrics = self._guard.metrics_text
        config = uvicorn.Config(
            self._guard,
            http=connection_class(settings.limits, settings.times),
            log_level="warning",
            lifespan="off",
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_BREAK_OFF_SECONDS,
            root_path=options.root_path or "",
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
        """Finish what runs, and meanwhile tell new requests to go elsewhere; then close the socket.

        What is not finished in time, or when a second signal comes, gets an error.
        """
        await self._until_idle(http, _DRAIN_SECONDS, lambda: self._http.force_exit)
        if self._guard.requests:
            self._guard.end_requests()
            await self._until_idle(http, _HURRY_SECONDS if self._http.force_exit else _BREAK_OFF_SECONDS)
        self._http.should_exit = True
        await http

    async def _until_idle(
        self, http: asyncio.Task[None], seconds: float, enough: Callable[[], bool] = lambda: False
    ) -> None:
        started = time.monotonic()
        while self._guard.requests and not (http.done() or enough()) and time.monotonic() - started < seconds:
            await asyncio.sleep(_LOOK_SECONDS)

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
        with contextlib.suppress(OSError):  # a full disk, or a pipe that nobody reads, must not end the server
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
