"""What our server costs over vLLM's own, and what it gives under overload: the same load on both, in turns.

The model is SmolLM2-135M (benchmarks/smollm2.py), the engine's options and environment are the same for both. Prompts
are 64 random tokens, no two alike; answers are always 32. One server runs at a time: in the first round `vllm serve`,
then ours; in the second the other way round; and so on, since the machine's own speed drifts by more than the two
differ. Each is asked by 1, 8 and 32 clients at a time and by a burst of 256, every measurement after a warm-up. In the
last round each is also overloaded: requests come at random times at four times the rate at which `vllm serve` answered
most, for a minute, and everything that was let in is waited for. `vllm serve` lets everything in, so its waits grow
with that minute; ours has the default bounds of its queue.

    python -m benchmarks.serve            # 20 to 25 minutes on two cores; writes benchmarks/results/serve.json
    python -m benchmarks.serve --quick    # a try; writes benchmarks/results/serve.quick.json
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Bar, write_result
from benchmarks.serve_servers import OURS, PEER, Served, engine_environment, engine_options, served
from benchmarks.smollm2 import smollm2_folder
from serving.load.answer import Outcome
from serving.load.calls import Call, Shape, at_once, at_random, one_after_another
from serving.load.load import Load, send_load
from serving.load.report import percentile, summarise
from serving.load.run import run_event_loop

_SHAPE = Shape(prompt_tokens=64, max_tokens=32)
_WARM_UP = Shape(prompt_tokens=64, max_tokens=8)
_ROUNDS = 6
_OVERLOAD = 4.0
_OVERLOAD_SECONDS = 60.0
_QUICK_OVERLOAD_SECONDS = 20.0
_ANSWER_SECONDS = 900.0

Figures = dict[str, Any]


@dataclass(frozen=True)
class Level:
    """So many clients at a time send so many requests; None: all at once."""

    name: str
    requests: int
    concurrency: int | None

    def calls(self) -> list[Call]:
        """What is sent."""
        return at_once(_SHAPE, self.requests) if self.concurrency is None else one_after_another(_SHAPE, self.requests)

    def smaller(self) -> "Level":
        """The same for a try."""
        return self if self.concurrency is None else Level(self.name, max(4, self.requests // 3), self.concurrency)


_LEVELS = (
    Level("concurrency 1", 16, 1),
    Level("concurrency 8", 48, 8),
    Level("concurrency 32", 96, 32),
    Level("burst of 256", 256, None),
)


def main() -> None:
    """Measure both servers in turns and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of fewer requests, into another file")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="turns of each server")
    parser.add_argument("--overload-seconds", type=float, help="how long requests come at four times the rate")
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    seconds = arguments.overload_seconds or (_QUICK_OVERLOAD_SECONDS if quick else _OVERLOAD_SECONDS)
    levels = [level.smaller() for level in _LEVELS] if quick else list(_LEVELS)
    bench = _Bench(smollm2_folder(), levels, 1 if quick else arguments.rounds, seconds)
    with tempfile.TemporaryDirectory() as folder:
        bench.run(Path(folder))
    result = bench.result()
    write_result("serve.quick" if quick else "serve", result, _bars(levels, result))


class _Bench:
    """The turns of one run, and what they gave."""

    def __init__(self, model: Path, levels: Sequence[Level], rounds: int, seconds: float) -> None:
        self._model = model
        self._levels = levels
        self._rounds = rounds
        self._overload_seconds = seconds
        self._rate: float | None = None
        self._ready: dict[str, list[float]] = {OURS: [], PEER: []}
        self._turns: dict[str, dict[str, list[Figures]]] = {level.name: {OURS: [], PEER: []} for level in levels}
        self._overload: dict[str, Figures] = {}

    def run(self, folder: Path) -> None:
        """Every turn of both servers, in the order A B B A."""
        for turn in range(self._rounds):
            for way in (PEER, OURS) if turn % 2 == 0 else (OURS, PEER):
                with served(way, self._model, folder) as server:
                    print(f"round {turn + 1}: {way}, ready after {server.ready_seconds:.0f} s", flush=True)
                    self._ready[way].append(server.ready_seconds)
                    self._measure_levels(server, turn)
                    if turn == self._rounds - 1:
                        self._overload[way] = self._overloaded(server)

    def result(self) -> Figures:
        """The measurements, as results hold them."""
        return {
            "model": "SmolLM2-135M-Instruct in bfloat16",
            "engine_options": engine_options(),
            "environment": engine_environment(),
            "prompt_tokens": _SHAPE.prompt_tokens,
            "generated_tokens": _SHAPE.max_tokens,
            "turns": f"{self._rounds} of each server, one server at a time; overload in the last",
            "ready_seconds": self._ready,
            "levels": {
                name: {way: {**_medians(turns), "turns": turns} for way, turns in ways.items()}
                for name, ways in self._turns.items()
            },
            "overload": {
                "requests_per_second": self._rate,
                "times_the_capacity": _OVERLOAD,
                "seconds": self._overload_seconds,
                "queue": "ours: the default bounds of configs/serving/limits.yaml; vllm serve: unbounded, its default",
                **self._overload,
            },
        }

    def _measure_levels(self, server: Served, turn: int) -> None:
        self._warm_up(server, 32, seed=1000 * turn + 99)  # what is slower at first is slower for both, and varies
        for place, level in enumerate(self._levels):
            self._warm_up(server, level.concurrency or level.requests, seed=1000 * turn + 100 + place)
            figures = _figures(server, level.calls(), level.concurrency, seed=1000 * turn + place)
            self._turns[level.name][server.way].append(figures)
            _say(level.name, figures)

    def _warm_up(self, server: Served, clients: int, seed: int) -> None:
        count = min(clients, 32)
        _figures(server, one_after_another(_WARM_UP, count), count, seed)

    def _overloaded(self, server: Served) -> Figures:
        if self._rate is None:
            turns = [turn for ways in self._turns.values() for turn in ways[PEER]]
            self._rate = _OVERLOAD * max(turn["requests_per_second"] for turn in turns)
        calls = at_random(_SHAPE, round(self._rate * self._overload_seconds), self._rate, seed=7)
        self._warm_up(server, 32, seed=8)
        refused_before = len(_refusal_seconds(server))
        figures = _figures(server, calls, None, seed=9)
        in_server = _refusal_seconds(server)[refused_before:]
        figures["refusal_seconds_in_the_server"] = {f"p{share}": percentile(in_server, share) for share in (50, 90, 99)}
        _say("overload", figures)
        return figures


def _figures(server: Served, calls: Sequence[Call], concurrency: int | None, seed: int) -> Figures:
    plan = Load(server.url, calls, concurrency, seed=seed, ignore_eos=True, timeout=_ANSWER_SECONDS)
    return summarise(run_event_loop(send_load(plan, shown=False)))


def _refusal_seconds(server: Served) -> list[float]:
    """From arrival to the end of the answer, of every 429 in our access log."""
    if server.way != OURS:
        return []
    records = [json.loads(line) for line in server.access_log.read_text(encoding="utf-8").splitlines()]
    return [record["seconds"] for record in records if record["status"] == 429]


def _medians(turns: Sequence[Figures]) -> Figures:
    return {
        "tokens_per_second": statistics.median(turn["tokens_per_second"] for turn in turns),
        "first_token_p50_seconds": statistics.median(turn["time_to_first_token"]["p50"] for turn in turns),
        "latency_p99_seconds": statistics.median(turn["latency"]["p99"] for turn in turns),
    }


def _say(name: str, figures: Figures) -> None:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in figures["requests"].items() if count)
    first, latency = figures["time_to_first_token"], figures["latency"]
    print(
        f"  {name}: {counts}; {figures['tokens_per_second']:.1f} tokens/s, first token {first['p50']:.3f} s at p50, "
        f"latency {latency['p50']:.2f} s at p50 and {latency['p99']:.2f} at p99",
        flush=True,
    )


def _bars(levels: Sequence[Level], result: Figures) -> list[Bar]:
    bars = []
    for level in levels:
        ours, peer = (result["levels"][level.name][way] for way in (OURS, PEER))
        later = 1000 * (ours["first_token_p50_seconds"] - peer["first_token_p50_seconds"])
        bars += [
            Bar(f"{level.name}: throughput", ours["tokens_per_second"] / peer["tokens_per_second"], "x", at_least=0.97),
            Bar(f"{level.name}: median time to first token, later by", later, "ms", at_most=3.0),
            Bar(f"{level.name}: p99", ours["latency_p99_seconds"] / peer["latency_p99_seconds"], "x", at_most=1.1),
        ]
    ours, peer = (result["overload"][way] for way in (OURS, PEER))
    bars.append(Bar("overload: p99 of the admitted", ours["latency"]["p99"] / peer["latency"]["p99"], "x", at_most=0.5))
    refusal = ours["refusal_seconds_in_the_server"]["p99"]
    if refusal is not None:
        bars.append(Bar("overload: p99 of a refusal, in the server", 1000 * refusal, "ms", at_most=5.0))
    turns = [turn for ways in result["levels"].values() for turn in ways[OURS]["turns"]] + [ours]
    failed = sum(turn["requests"][Outcome.failed.value] for turn in turns)
    bars.append(Bar("requests of ours with neither answer nor refusal", failed, "", at_most=0))
    return bars


if __name__ == "__main__":
    main()
