"""Noticing that a rank hangs, and which: every rank leaves signs of life in the run folder and reads the others'.

A collective that one rank never joins blocks all of them, so nothing can be asked of the main thread; a thread
can still look at files. A stopped or lost process is the one whose file grows old; one that is stuck outside the
collectives is the one whose phase differs.
"""

import os
import sys
import threading
import time
from pathlib import Path

from foundation.files import read_json, write_json, write_text

EXIT_HUNG = 3
_CHECKS = 20


def hang_report(run: Path) -> Path:
    """Where the reason of a job that was ended for hanging is left."""
    return run / "logs" / "hang.txt"


class Watchdog:
    """Ends this process with `EXIT_HUNG` when no step is finished for `timeout` seconds, and says which rank hung."""

    def __init__(self, run: Path, rank: int, world_size: int, timeout: float) -> None:
        self._run = run
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout
        self._step = 0
        self._phase = "starting"
        self._progress = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        hang_report(self._run).unlink(missing_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._sign(self._rank).unlink(missing_ok=True)

    def enter(self, phase: str, step: int) -> None:
        """Note what the main thread is about to do; entering a phase is progress."""
        self._phase, self._step, self._progress = phase, step, time.monotonic()

    def _watch(self) -> None:
        stopped = False
        while not stopped:
            write_json(self._sign(self._rank), {"step": self._step, "phase": self._phase, "host": os.uname().nodename})
            stopped = self._stopped.wait(self._timeout / _CHECKS)
            if time.monotonic() - self._progress > self._timeout:
                self._end(self._suspect())

    def _suspect(self) -> str:
        now = self._sign(self._rank).stat().st_mtime
        for rank in range(self._world_size):
            sign = self._sign(rank)
            if not sign.is_file():
                return f"rank {rank} never gave a sign of life"
            silent = now - sign.stat().st_mtime
            # Half of the timeout is ten missed signs.
            if silent > self._timeout / 2:
                return f"rank {rank} on {read_json(sign)['host']} has given no sign of life for {silent:.0f} s"
        states = {rank: read_json(self._sign(rank)) for rank in range(self._world_size)}
        if len({(state["step"], state["phase"]) for state in states.values()}) == 1:
            return f"every rank is in step {self._step}, phase {self._phase!r}: a collective hangs; is the network up?"
        behind = min(states, key=lambda rank: (states[rank]["step"], states[rank]["phase"] == "step"))
        return (
            f"rank {behind} on {states[behind]['host']} is at step {states[behind]['step']} in phase "
            f"{states[behind]['phase']!r}, which the others wait for"
        )

    def _end(self, reason: str) -> None:
        message = f"no step was finished within {self._timeout:.0f} s: {reason}"
        write_text(hang_report(self._run), message)
        print(f"mtnlg: rank {self._rank}: {message}", file=sys.stderr, flush=True)
        # The main thread is inside a collective and cannot be asked.
        os._exit(EXIT_HUNG)

    def _sign(self, rank: int) -> Path:
        return self._run / "logs" / f"alive-{rank:05d}.json"
