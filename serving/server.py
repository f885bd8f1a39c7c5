"""The verb `serve`: socket, engine, HTTP, and an orderly end."""

import argparse
import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from foundation.errors import UserError
from serving.app import ServerState, build_app
from serving.check import check_server
from serving.engine import (
    Engine,
    engine_version,
    first_line,
    make_token,
    openai_app,
    parse_options,
    prepare_environment,
    start_engine,
)
from serving.model_folder import inspect_model
from serving.processes import end_processes, engine_processes, private_temporary_folder, shared_memory_of

_DRAIN_SECONDS = 30
_WATCH_SECONDS = 0.5
_GRACE_SECONDS = 5.0


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tensor_parallel_size: int | None = None,
    engine_options: Sequence[str] = (),
    check: str | None = None,
) -> None:
    """Serve `model` until SIGTERM or Ctrl-C; with `check`, until that prompt's completion was printed.

    On a signal it stops accepting, finishes what runs (30 s at most), ends the engine and returns.
    Raises UserError when the folder, the port or an option will not do, and when the engine dies.
    """
    folder = inspect_model(model, tensor_parallel_size)
    version, cpu = engine_version()
    with listening_socket(host, port) as listener, private_temporary_folder():
        prepare_environment(folder.tensor_parallel_size, engine_options, cpu=cpu)
        options = parse_options(folder, engine_options, cpu=cpu)
        state = ServerState(model=options.served_model_name[0], engine_version=version)
        asyncio.run(_Service(state, listener, options).run(check))


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

    def __init__(self, state: ServerState, listener: socket.socket, options: argparse.Namespace) -> None:
        host, port = listener.getsockname()[:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._state = state
        self._listener = listener
        self._options = options
        self._stop = asyncio.Event()
        self._load: asyncio.Task[Engine] | None = None
        self._shared_memory: set[Path] = set()
        config = uvicorn.Config(
            build_app(state), log_level="warning", lifespan="off", timeout_graceful_shutdown=_DRAIN_SECONDS
        )
        self._http = _Server(config)

    async def run(self, check: str | None) -> None:
        """Answer HTTP from the start, load, serve, and leave nothing running."""
        with self._signals():
            http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
            work = asyncio.create_task(self._work(check))
            stop = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({http, work, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._state.draining = True
                self._http.should_exit = True
                await http
                stop.cancel()
                work.cancel()
                await asyncio.wait({work, stop})
                await self._end_engine()
        if not work.cancelled() and not self._stop.is_set():
            work.result()  # raises what went wrong

    async def _work(self, check: str | None) -> None:
        state = self._state
        print(f"mtnlg: loading {state.model}", flush=True)
        self._load = asyncio.create_task(asyncio.to_thread(start_engine, self._options))
        state.engine = engine = await asyncio.shield(self._load)
        self._shared_memory |= shared_memory_of(engine_processes())
        try:
            openai = await openai_app(engine, self._options)
            await make_token(engine)
        except Exception as error:
            raise UserError(f"the engine makes no token: {first_line(error)}") from error
        state.openai = openai
        print(f"mtnlg: serving {state.model} at {self._url}", flush=True)
        if check is None:
            await self._watch()
        else:
            keys = self._options.api_key or [None]
            await check_server(self._url, state.model, check, keys[0])

    async def _watch(self) -> None:
        """Return never; raise UserError when the engine dies."""
        while self._state.engine is not None and not self._state.engine.errored:
            await asyncio.sleep(_WATCH_SECONDS)
        raise UserError("the engine died; its log says why (VLLM_LOGGING_LEVEL=INFO says more)")

    async def _end_engine(self) -> None:
        """End the engine, loaded or half loaded, and remove what its workers leave in shared memory."""
        if self._load is None:
            return
        while not self._load.done():
            self._shared_memory |= shared_memory_of(processes := engine_processes())
            end_processes(processes, grace_seconds=0.0)
            await asyncio.wait({self._load}, timeout=_WATCH_SECONDS)
        processes = engine_processes()
        if self._load.exception() is None:
            # In this thread, so that vLLM's tasks are cancelled before they can see the engine gone and complain.
            self._load.result().shutdown(0)
        end_processes(processes, grace_seconds=_GRACE_SECONDS)
        for path in self._shared_memory:
            path.unlink(missing_ok=True)

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
