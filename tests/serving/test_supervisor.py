"""The engine's life, with an engine that is none."""

import argparse
import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from serving import supervisor
from serving.app import ServerState
from serving.guard.settings import EngineFacts
from serving.supervisor import Supervisor


class FakeEngine:
    errored = False

    def __init__(self) -> None:
        self.itself = self  # a cycle, as a real engine is full of

    def shutdown(self, timeout: float | None = None) -> None:
        pass


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list["weakref.ref[FakeEngine]"]]:
    """The engines that were started."""
    started: list[weakref.ref[FakeEngine]] = []

    def start(options: argparse.Namespace) -> FakeEngine:
        started.append(weakref.ref(engine := FakeEngine()))
        return engine

    async def done(*arguments: Any) -> Any:
        return object()

    monkeypatch.setattr(supervisor, "start_engine", start)
    monkeypatch.setattr(supervisor, "engine_processes", list)  # else this process's own children are ended
    monkeypatch.setattr(supervisor, "openai_app", done)
    monkeypatch.setattr(supervisor, "make_token", done)
    monkeypatch.setattr(supervisor, "note_outputs", lambda engine, note: None)
    monkeypatch.setattr(supervisor, "engine_facts", lambda engine, options: EngineFacts(("a",), 8, count_tokens=len))
    yield started
    gc.unfreeze()


def test_requests_are_not_held_up_by_a_collection_of_what_starting_made(
    engines: list["weakref.ref[FakeEngine]"],
) -> None:
    asyncio.run(Supervisor(ServerState("a", "0"), argparse.Namespace(), 1, print).start())
    mine: list[Any] = [object()]
    assert all(one is not engines[0]() for one in gc.get_objects())
    assert any(one is mine for one in gc.get_objects())


def test_an_engine_that_was_replaced_is_collected(engines: list["weakref.ref[FakeEngine]"]) -> None:
    async def replace() -> None:
        life = Supervisor(ServerState("a", "0"), argparse.Namespace(), 1, print)
        await life.start()
        await life.end()
        await life.start()

    asyncio.run(replace())
    assert engines[0]() is None
    assert engines[1] is not engines[0]
