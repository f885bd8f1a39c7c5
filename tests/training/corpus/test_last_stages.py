"""Decontamination and tokenising by real worker processes: the same files as in one process."""

from pathlib import Path

import pytest

from foundation.files import sha256_file
from tests.conversion.training_checkpoint import write_byte_tokenizer
from tests.training.corpus.stages import ThisProcess, corpus_config, documents, write_shards
from tests.training.corpus.test_decontaminate import FILLER, SHORT, Run
from training.corpus.engine import DaftEngine
from training.corpus.parquet import read_parquet
from training.corpus.shard_work import shard_records
from training.corpus.stage import Engine, Work
from training.corpus.tokenise import Tokenise

pytest.importorskip("daft")


def run(folder: Path, engine: Engine) -> dict[str, str]:
    """Both stages on five shards; the hashes of what they leave."""
    texts = [f"{number} {FILLER} {SHORT if number % 3 == 0 else ''}. {FILLER}" for number in range(12)]
    shards = write_shards(folder / "input", "set", documents(*texts), 5)
    decontaminate = Run(folder / "asked", [("wic", SHORT)]).stage
    (folder / "decontaminate").mkdir()
    decontaminate.run(Work(shards, folder / "decontaminate", engine, lambda what, done, total: None))
    (folder / "bpe").mkdir()
    write_byte_tokenizer(folder / "bpe")
    tokenise = Tokenise(corpus_config(tokenise={"tokenizer": str(folder / "bpe")}))
    cleaned = [shard for shard, _ in shard_records(folder / "decontaminate")]
    tokenise.run(Work(cleaned, folder / "tokenise", engine, lambda what, done, total: None))
    files = (path for stage in ("decontaminate", "tokenise") for path in sorted((folder / stage).rglob("*")))
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in files
        if path.is_file() and "scratch" not in path.parts
    }


def test_real_workers_leave_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    found = run(tmp_path / "one", DaftEngine(workers=2))
    assert found == run(tmp_path / "two", ThisProcess())
    cuts = [read_parquet(path) for path in sorted((tmp_path / "one/decontaminate/side/cuts/set").iterdir())]
    assert sum(map(len, cuts)) == 4
    assert "tokenise/set/train.bin" in found
