"""The engine's life: started, proved by tokens, watched, ended, and started again when it dies or hangs."""

import argparse
import asyncio
import collections
import gc
import time
from collections.abc import Callable
from pathlib import Path

from foundation.errors import UserError, one_line
from foundation.heap import set_heap_aside
from foundation.vllm_environment import shared_memory_of
from serving.app import ServerState
from serving.engine import Engine, engine_facts, make_token, note_outputs, openai_app, start_engine
from serving.processes import end_processes, engine_processes

# A hung engine is noticed within the sum of the three: it is silent, then does not answer a probe.
_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 3.0
_PROBE_SECONDS = 10.0
# Restarts are counted over so long: an engine that dies once a day is worth starting again, not one that dies at once.
_RESTART_WINDOW_SECONDS = 600.0
_GRACE_SECONDS = 5.0


class EngineDiedError(Exception):
    """The engine cannot go on; the text says why."""


class Supervisor:
    """Keeps an engine running behind `state`. `report` is told what happens, a line each."""

    def __init__(
        self, state: ServerState, options: argparse.Namespace, restarts: int, report: Callable[[str], None]
    ) -> None:
        self._state = state
        self._options = options
        self._restarts = restarts
        self._report = report
        self._load: asyncio.Task[Engine] | None = None
        self._shared_memory: set[Path] = set()
        self._deaths: collections.deque[float] = collections.deque()

    async def start(self) -> None:
        """Load the model and prove it by a token; then requests are taken. Raises UserError when it makes none."""
        state = self._state
        self._load = asyncio.create_task(asyncio.to_thread(start_engine, self._options))
        state.engine = engine = await asyncio.shield(self._load)
        self._shared_memory |= shared_memory_of(engine_processes())
        note_outputs(engine, state.note_token)
        try:
            openai = await openai_app(engine, self._options)
            await make_token(engine)
        except Exception as error:
            raise UserError(f"the engine makes no token: {one_line(error)}") from error
        state.note_token()
        state.facts = engine_facts(engine, self._options)
        # A collection of all that starting makes would hold up every request, as vLLM's own server knows too.
        set_heap_aside(anew=True)
        state.openai = openai

    async def watch(self) -> None:
        """Return never: start a dead or hung engine again. Raises UserError when that has been tried often enough."""
        while True:
            try:
                await self._until_death()
            except EngineDiedError as death:
                self._count(death)
                self._state.restarts += 1
                self._report(f"{death}; starting it again ({len(self._deaths)} of {self._restarts})")
                self._state.openai = self._state.facts = None
                await self.end()
                await self.start()
                self._report("the engine is back")

    async def end(self) -> None:
        """End the engine, loaded or half loaded, and remove what its workers leave in shared memory."""
        if self._load is None:
            return
        while not self._load.done():
            self._shared_memory |= shared_memory_of(processes := engine_processes())
            await asyncio.to_thread(end_processes, processes, grace_seconds=0.0)
            await asyncio.wait({self._load}, timeout=_LOOK_SECONDS)
        processes = engine_processes()
        if self._load.exception() is None:
            # In this thread, so that vLLM's tasks are cancelled before they can see the engine gone and complain.
            self._load.result().shutdown(0)
        # In another, so that /live is answered meanwhile.
        await asyncio.to_thread(end_processes, processes, grace_seconds=_GRACE_SECONDS)
        for path in self._shared_memory:
            path.unlink(missing_ok=True)
        self._load, self._shared_memory, self._state.engine = None, set(), None
        gc.unfreeze()  # what is set aside when the process ends looks like a leak to some libraries

    async def _until_death(self) -> None:
        """Return never; raises EngineDiedError once the engine is gone, or silent and deaf."""
        state = self._state
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if state.engine is None or state.engine.errored:
                raise EngineDiedError("the engine died; its log says why (VLLM_LOGGING_LEVEL=INFO says more)")
            if state.silent_seconds() > _SILENT_SECONDS:
                await self._probe(state.engine)

    async def _probe(self, engine: Engine) -> None:
        """Have the silent engine make a token; anything that it makes meanwhile counts too."""
        probe = asyncio.create_task(make_token(engine))
        asked = time.monotonic()
        try:
            while time.monotonic() - asked < _PROBE_SECONDS:
                await asyncio.wait({probe}, timeout=_LOOK_SECONDS)
                if probe.done() and probe.exception() is None:
                    self._state.note_token()
                if engine.errored or self._state.silent_seconds() < _SILENT_SECONDS:
                    return
            self._kill()
            raise EngineDiedError(f"the engine hung: no token for {self._state.silent_seconds():.0f} s")
        finally:
            probe.cancel()
            await asyncio.wait({probe})

    def _kill(self) -> None:
        """Requests in a hung engine would wait for ever; when its processes are gone, vLLM gives them an error."""
        end_processes(engine_processes(), grace_seconds=0.0)

    def _count(self, death: EngineDiedError) -> None:
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > _RESTART_WINDOW_SECONDS:
            self._deaths.popleft()
        if len(self._deaths) > self._restarts:
            raise UserError(str(death)) from death
