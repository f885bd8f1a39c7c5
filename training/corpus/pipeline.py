"""`mtnlg corpus build`: run the stages in their order, skip what is done and unchanged, go on after a kill."""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foundation.config import write_config
from foundation.errors import UserError
from foundation.files import read_json, sha256_file, write_json
from foundation.manifest import MANIFEST, FileRecord, Manifest, check_manifest, read_manifest, write_manifest
from training.corpus.config import CorpusConfig
from training.corpus.lock import building
from training.corpus.progress import BuildDisplay, duration
from training.corpus.shard_work import SCRATCH, pass_on, remove_others, shard_records, summarise
from training.corpus.sources import Sources
from training.corpus.stage import Engine, Shard, ShardStage, Stage, Work
from training.corpus.stages import STAGES, before, make_stage

CORPUS_STAGE = "mtnlg-corpus-stage"
CONFIG = "corpus.yaml"
SUMMARY = "summary.json"
_BEGUN = "begun.json"
_TIMES = "times.json"
_UNLISTED = (MANIFEST, _BEGUN, _TIMES)
# What of a manifest's `about` decides whether a finished stage is still right.
_DECIDES = ("stage", "identity", "input", "datasets", "passed_on", "stamps")
_IN_WORDS = MappingProxyType({"input": "its input", "passed_on": "skip", "stamps": "the sources' files"})


@dataclass(frozen=True)
class Step:
    """One stage of one build: what decides its output, and what there is of it."""

    stage: Stage
    folder: Path
    about: dict[str, Any]
    stamps: str | None  # the sources' dates of change: they are looked at but are no part of the output

    @property
    def keyed(self) -> bool:
        """Whether the stage itself knows which of its shards are still right, by their keys."""
        return isinstance(self.stage, (ShardStage, Sources))

    def begun(self) -> dict[str, Any]:
        """What is written when the work begins."""
        return {**self.about, "stamps": self.stamps}

    def finished(self) -> Manifest | None:
        """The manifest, if the stage was finished with this input and identity and its files are there."""
        manifest = read_manifest(self.folder)
        if manifest is None or changes({**manifest.about, "stamps": self.stamps}, self.begun()):
            return None
        if self.stamps is not None and _begun(self.folder).get("stamps") != self.stamps:
            return None
        return None if check_manifest(self.folder, manifest, checksums=False) else manifest


def build(config: CorpusConfig, engine: Engine, display: BuildDisplay, only: str | None = None) -> None:
    """Bring the stages up to date in `config.out`, or `only` one of them.

    Raises UserError when another build is at work there, and whatever the stages raise.
    """
    with building(config.out):
        write_config(config, config.out / CONFIG)
        for name in [only] if only else list(STAGES):
            step = plan_step(name, config)
            if step.finished() is not None:
                display.note(f"{name}: done already")
                continue
            _run_step(step, config, engine, display)


def plan_step(name: str, config: CorpusConfig) -> Step:
    """The stage with all that decides its output. Raises UserError when the stage before it is not finished."""
    stage = make_stage(name, config)
    previous = before(name)
    # Workers on other machines have working folders of their own.
    out = config.out.absolute()
    about = {
        "stage": name,
        "identity": json.loads(json.dumps(stage.identity(), default=str)),
        "input": _input_hash(out / previous) if previous else None,
        "datasets": sorted(dataset.name for dataset in config.datasets),
        "passed_on": sorted(dataset.name for dataset in config.datasets if name in dataset.skip),
    }
    return Step(stage, out / name, about, stage.stamps() if isinstance(stage, Sources) else None)


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two `about`s, in words; empty when the output would be the same."""
    named = []
    for key in _DECIDES:
        before_value, after_value = old.get(key), new.get(key)
        if before_value == after_value:
            continue
        if isinstance(before_value, dict) and isinstance(after_value, dict):
            keys = sorted({*before_value, *after_value})
            named += [k for k in keys if before_value.get(k) != after_value.get(k)]
        else:
            named.append(_IN_WORDS.get(key, key))
    return named


def _input_hash(folder: Path) -> str:
    if read_manifest(folder) is None:
        raise UserError(f"{folder} is not finished; run the stages before first: mtnlg corpus build, without --stage")
    return sha256_file(folder / MANIFEST)


def _run_step(step: Step, config: CorpusConfig, engine: Engine, display: BuildDisplay) -> None:
    resumed = _begin(step, display)
    started = time.perf_counter()
    shards = _input_shards(step, config)
    passed = [shard for shard in shards if shard.dataset in step.about["passed_on"]]
    for shard in passed:
        pass_on(step.folder, shard, shards[shard])
    with display.stage(step.stage.name) as report:
        work = Work([shard for shard in shards if shard not in set(passed)], step.folder, engine, report)
        step.stage.run(work)
    if isinstance(step.stage, ShardStage):
        remove_others(step.folder, {(shard.dataset, shard.name) for shard in shards})
    manifest = _finish(step)
    seconds = time.perf_counter() - started
    times = {"seconds": round(seconds, 3), "resumed": resumed, **_rates(manifest, seconds)}
    write_json(step.folder / _TIMES, times)
    display.note(_summary_line(step, manifest, seconds))
    for dataset, total in _datasets(step.folder).items():
        if total.get("documents_in") and not total.get("documents_out"):
            display.note(f"{step.stage.name}: nothing is left of dataset {dataset}")


def _begun(folder: Path) -> dict[str, Any]:
    path = folder / _BEGUN
    return dict(read_json(path)) if path.is_file() else {}


def _input_shards(step: Step, config: CorpusConfig) -> dict[Shard, dict[str, Any]]:
    """The documents that go into a stage, by the datasets' priority, and the records of the stage before it."""
    previous = before(step.stage.name)
    if previous is None:
        return {}
    priority = {dataset.name: place for place, dataset in enumerate(config.datasets)}
    found = {
        shard: record for shard, record in shard_records(step.folder.parent / previous) if shard.dataset in priority
    }
    return {shard: found[shard] for shard in sorted(found, key=lambda shard: (priority[shard.dataset], shard.name))}


def _begin(step: Step, display: BuildDisplay) -> bool:
    """Make the folder ready: whether it holds a part of this very work. What is no longer right goes."""
    folder, name = step.folder, step.stage.name
    stale = folder.with_name(f".{folder.name}.stale")
    shutil.rmtree(stale, ignore_errors=True)
    old = _begun(folder)
    # Only files that a build leaves before it says what it is: those of a killed `write_json`.
    if folder.is_dir() and not old and any(not p.name.startswith(".") for p in folder.iterdir()):
        raise UserError(f"{folder} is not empty and no build of a corpus; choose another out")
    different = changes(old, step.begun()) if old else []
    broken = (folder / MANIFEST).is_file() and not different
    if different:
        display.note(f"{name}: {', '.join(different)} changed since it was last run")
    elif old:
        display.note(f"{name}: {'files are missing or damaged' if broken else 'going on where it ended'}")
    (folder / MANIFEST).unlink(missing_ok=True)
    if (different or broken) and not step.keyed:
        folder.rename(stale)
        shutil.rmtree(stale)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _BEGUN, step.begun())
    return bool(old) and not different


def _finish(step: Step) -> Manifest:
    """Sweep up, add up, and commit the stage by its manifest."""
    folder = step.folder
    known: dict[str, FileRecord] = {}
    if step.keyed:
        for _, record in shard_records(folder):
            known |= {name: FileRecord.model_validate(file) for name, file in record["files"].items()}
        _sweep(folder, set(known))
        write_json(folder / SUMMARY, {"stage": step.stage.name, "datasets": summarise(folder)})
    else:
        for nested in sorted(folder.glob(f"*/{MANIFEST}")):
            manifest = read_manifest(nested.parent)
            if manifest is not None:
                known |= {f"{nested.parent.name}/{name}": file for name, file in manifest.files.items()}
    files = [path for path in _files(folder) if path.name not in _UNLISTED or path.parent != folder]
    about = {**step.about, "counts": _counts(folder)}
    return write_manifest(folder, CORPUS_STAGE, about, files, known)


def _files(folder: Path) -> Iterator[Path]:
    """The stage's files, without what it only worked with."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and relative.parts[0] != SCRATCH and not path.name.startswith("."):
            yield path


def _sweep(folder: Path, wanted: set[str]) -> None:
    """Remove what killed runs and earlier settings left."""
    for path in list(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not path.is_file() or len(relative.parts) == 1 or relative.parts[0] in (SCRATCH, "records"):
            continue
        if relative.as_posix() not in wanted:
            path.unlink()
    for path in folder.rglob(".*.tmp"):
        path.unlink()


def _datasets(folder: Path) -> dict[str, dict[str, Any]]:
    """A stage's sums by dataset; none for a stage that makes no summary of that form."""
    path = folder / SUMMARY
    return dict(read_json(path).get("datasets", {})) if path.is_file() else {}


def _counts(folder: Path) -> dict[str, int]:
    datasets = _datasets(folder)
    if not datasets:
        return {}
    names = ("documents_in", "documents_out", "dropped", "bytes_in", "bytes_out")
    return {name: sum(total.get(name, 0) for total in datasets.values()) for name in names}


def _rates(manifest: Manifest, seconds: float) -> dict[str, float]:
    counts = manifest.about["counts"]
    if not counts:
        return {}
    return {
        "documents_per_second": round(counts["documents_in"] / max(seconds, 1e-9), 3),
        "megabytes_per_second": round(counts["bytes_in"] / 1e6 / max(seconds, 1e-9), 3),
    }


def _summary_line(step: Step, manifest: Manifest, seconds: float) -> str:
    counts = manifest.about["counts"]
    name = step.stage.name
    if not counts:
        return f"{name}: finished in {duration(seconds)}"
    return (
        f"{name}: {counts['documents_out']:,} of {counts['documents_in']:,} documents kept, "
        f"{counts['bytes_out'] / 1e6:,.1f} of {counts['bytes_in'] / 1e6:,.1f} MB, {duration(seconds)}"
    )


def states(config: CorpusConfig, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """For a dry run: each stage's name, and what a build would do with it. Writes nothing."""
    redone: str | None = None
    for name in names:
        if redone is not None:
            yield name, f"to do, after {redone}"
            continue
        try:
            step = plan_step(name, config)
        except UserError as error:
            redone = name
            yield name, f"cannot run: {error}"
            continue
        if step.finished() is not None:
            yield name, "done already"
            continue
        redone = name
        yield name, _unfinished(step)


def _unfinished(step: Step) -> str:
    old = _begun(step.folder)
    if not old:
        return "to do"
    different = changes(old, step.begun())
    if different:
        return f"to do again: {', '.join(different)} changed"
    return f"to go on: {sum(1 for _ in shard_records(step.folder))} shards are finished"
