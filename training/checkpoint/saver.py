"""Saving without stopping: a step waits for a copy in memory, a thread writes and commits."""

import shutil
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from foundation.errors import UserError
from foundation.files import fsync_file
from training.checkpoint.commit import commit, prune, write_record
from training.checkpoint.names import optimizer_file, step_folder, weights_file
from training.checkpoint.state import Snapshot, take_snapshot
from training.config import TrainConfig
from training.data.prepare import TOKENIZER_FOLDER

_COMMIT_SECONDS = 3600.0


class CheckpointSaver:
    """Saves one rank's part of each checkpoint; rank 0 commits. Every rank makes one and calls it alike."""

    def __init__(
        self, engine: Any, config: TrainConfig, rank: int, report: Callable[[str], None] | None = None
    ) -> None:
        self._engine = engine
        self._config = config
        self._rank = rank
        self._report = report or (lambda _: None)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, step: int, position: dict[str, Any]) -> float:
        """Copy the state after `step` and write it in the background; returns the seconds that it held training up.

        `position` is what the run needs to continue besides tensors (consumed samples, ...). A save that is still
        being written is waited for first. Raises UserError when the previous one failed.
        """
        started = time.perf_counter()
        self.wait()
        replica = self._config.layout.coordinate(self._rank).data
        snapshot = take_snapshot(self._engine, self._config.model, with_weights=replica == 0)
        self._thread = threading.Thread(target=self._write_guarded, args=(step, snapshot, position), daemon=True)
        self._thread.start()
        if not self._config.checkpoint.asynchronous:
            self.wait()
        return time.perf_counter() - started

    def wait(self) -> None:
        """Return once nothing is being written. Raises UserError when writing failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise UserError(f"a checkpoint could not be written: {self._error}") from self._error

    def _write_guarded(self, step: int, snapshot: Snapshot, position: dict[str, Any]) -> None:
        try:
            self._write(step, snapshot, position)
        except (OSError, UserError) as error:
            self._error = error
        except Exception as error:  # safetensors raises its own kind when the disk is full
            self._error = OSError(str(error))

    def _write(self, step: int, snapshot: Snapshot, position: dict[str, Any]) -> None:
        folder = step_folder(self._config.out, step)
        folder.mkdir(parents=True, exist_ok=True)
        stage, replica, tensor_rank = self._config.layout.coordinate(self._rank)
        files = []
        for state, fragments in snapshot.optimizer.items():
            files.append(folder / optimizer_file(state, stage, tensor_rank, replica))
            save_file(fragments, files[-1], snapshot.optimizer_metadata)
        if snapshot.weights:
            files.append(folder / weights_file(stage, tensor_rank))
            save_file(snapshot.weights, files[-1], {"format": "pt"})
        if self._rank == 0:
            files.extend(
                _copy_tokenizer(self._config.data.sources[0].path / TOKENIZER_FOLDER, folder / TOKENIZER_FOLDER)
            )
        for file in files:
            fsync_file(file)
        write_record(folder, self._rank, files)
        if self._rank == 0:
            commit(folder, self._config.layout.world_size, {**self._about(step), **position}, _COMMIT_SECONDS)
            prune(self._config.out, self._config.checkpoint.keep_last, self._config.checkpoint.keep_every)
            self._report(f"checkpoint: {folder}")

    def _about(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "layout": self._config.layout.model_dump(mode="json"),
            "model": self._config.model.model_dump(mode="json"),
            "precision": self._config.training.precision,
            "stage_bounds": [int(bound) for bound in self._engine.module.parts],
            "versions": {name: version(name) for name in ("mtnlg", "torch", "deepspeed")},
        }


def _copy_tokenizer(source: Path, target: Path) -> list[Path]:
    target.mkdir(exist_ok=True)
    return [Path(shutil.copyfile(path, target / path.name)) for path in sorted(source.iterdir())]
