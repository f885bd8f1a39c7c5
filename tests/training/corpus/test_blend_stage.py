"""The blend's plan beside the paper's table, and the section that training reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from foundation.config import CONFIG_ROOT, load_config
from foundation.errors import UserError
from foundation.files import read_json, write_text
from foundation.formats import TOKENS
from foundation.manifest import write_manifest
from tests.training.corpus.stages import corpus_config, work_on
from training.config import TrainConfig
from training.corpus.blend import Blend, make_plan, print_plan
from training.corpus.config import CorpusConfig

# Tokens in billions, weight in per cent, and epochs as the paper's table prints them.
PAPER = {
    "Books3": (25.7, 14.3, 1.5),
    "OpenWebText2": (14.8, 19.3, 3.6),
    "Stack-Exchange": (11.6, 5.7, 1.4),
    "PubMed-Abstracts": (4.4, 2.9, 1.8),
    "Wikipedia": (4.2, 4.8, 3.2),
    "Gutenberg-PG-19": (2.7, 0.9, 0.9),
    "BookCorpus2": (1.5, 1.0, 1.8),
    "NIH-ExPorter": (0.3, 0.2, 1.8),
    "Pile-CC": (49.8, 9.4, 0.5),
    "ArXiv": (20.8, 1.4, 0.2),
    "GitHub": (24.3, 1.6, 0.2),
    "CC-2020-50": (68.7, 13.0, 0.5),
    "CC-2021-04": (82.6, 15.7, 0.5),
    "RealNews": (21.9, 9.0, 1.1),
    "CC-Stories": (5.3, 0.9, 0.5),
}


def write_tokens(out: Path, **tokens: int) -> None:
    """What the tokenise stage leaves of datasets with so many training tokens."""
    for name, count in tokens.items():
        (out / "tokenise" / name).mkdir(parents=True)
        splits = {"train": {"documents": 1, "tokens": count}, "validation": {"documents": 0, "tokens": 0}}
        write_manifest(out / "tokenise" / name, TOKENS, {"vocab_size": 300, "splits": splits}, [])


def config_of(out: Path, weights: dict[str, float | None], **blend: Any) -> CorpusConfig:
    config = corpus_config(list(weights), blend=blend).model_dump()
    for dataset, weight in zip(config["datasets"], weights.values(), strict=True):
        dataset["weight"] = weight
    return CorpusConfig.model_validate({**config, "out": out})


def test_the_paper_s_blend_is_the_paper_s_table() -> None:
    config = load_config(CorpusConfig, CONFIG_ROOT / "corpus" / "mt-nlg.yaml")
    tokens = {dataset.name: round((dataset.tokens or 0) * 1e9) for dataset in config.datasets}
    plan = make_plan(config.datasets, tokens, config.blend.train_tokens)
    found = {d.name: (d.tokens / 1e9, round(100 * d.share, 1), d.epochs) for d in plan.datasets}
    assert found.keys() == PAPER.keys()
    for name, (size, weight, epochs) in PAPER.items():
        assert found[name][:2] == (size, weight)
        # The paper's are up to 0.14 more than weight x tokens of the run / size.
        assert epochs - 0.15 < found[name][2] < epochs + 0.08, name
    assert sum(d.share for d in plan.datasets) == pytest.approx(1)
    assert sum(d.drawn_tokens for d in plan.datasets) == pytest.approx(270e9, rel=1e-9)


def test_the_paper_s_plan_is_printed_without_any_data(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(load_config(CorpusConfig, CONFIG_ROOT / "corpus" / "mt-nlg.yaml"))
    lines = capsys.readouterr().out.splitlines()
    (books,) = [line for line in lines if "Books3" in line]
    assert [cell.strip() for cell in books.split("│")[1:-1]] == ["Books3", "25.7", "14.3", "1.5"]
    assert "in a run of 270,000,000,000 tokens" in lines


def test_the_stage_writes_what_training_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "corpus"
    write_tokens(out, books=1000, web=4000, none=0)
    stage = Blend(config_of(out, {"books": 3.0, "web": 1.0, "none": 5.0}, train_tokens=8000))
    stage.run(work_on([], out / "blend"))
    plan = read_json(out / "blend" / "plan.json")
    assert plan == {
        "train_tokens": 8000,
        "datasets": [
            {"name": "books", "tokens": 1000, "share": 0.75, "drawn_tokens": 6000, "epochs": 6.0},
            {"name": "web", "tokens": 4000, "share": 0.25, "drawn_tokens": 2000, "epochs": 0.5},
        ],
        "seed": 1234,
        "left_out": ["none"],
    }
    assert "no training tokens: none" in capsys.readouterr().err
    # Wherever the corpus is moved to.
    moved = out.rename(tmp_path / "moved")
    values = {
        "model": {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "sequence_length": 8, "vocab_size": 300},
        "training": {"train_tokens": 8000, "global_batch_size": 2},
        "out": "runs/x",
    }
    write_text(tmp_path / "train.yaml", json.dumps(values))
    config = load_config(TrainConfig, tmp_path / "train.yaml", [f"data={moved / 'blend' / 'blend.yaml'}"])
    assert [(source.path, source.weight) for source in config.data.sources] == [
        (moved / "tokenise" / "books", 0.75),
        (moved / "tokenise" / "web", 0.25),
    ]
    assert config.data.seed == 1234


def test_without_weights_every_dataset_is_read_as_often(tmp_path: Path) -> None:
    write_tokens(tmp_path, books=1000, web=3000)
    Blend(config_of(tmp_path, {"books": None, "web": None})).run(work_on([], tmp_path / "blend"))
    plan = read_json(tmp_path / "blend" / "plan.json")
    assert plan["train_tokens"] == 4000
    assert [(d["share"], d["epochs"]) for d in plan["datasets"]] == [(0.25, 1.0), (0.75, 1.0)]


def test_some_weights_are_refused(tmp_path: Path) -> None:
    write_tokens(tmp_path, books=1000, web=3000)
    config = config_of(tmp_path, {"books": 1.0, "web": None})
    with pytest.raises(UserError, match="datasets web: no weight, while others have one"):
        Blend(config).run(work_on([], tmp_path / "blend"))


def test_nothing_to_blend_is_refused(tmp_path: Path) -> None:
    write_tokens(tmp_path, books=0)
    with pytest.raises(UserError, match="no document is left"):
        Blend(config_of(tmp_path, {"books": None})).run(work_on([], tmp_path / "blend"))


def test_a_plan_needs_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, {"books": None, "web": None})
    with pytest.raises(UserError, match="how many tokens books, web have is not known"):
        print_plan(config)
    write_tokens(tmp_path, books=1_500_000, web=500_000)
    print_plan(config)
    assert "Tokens (million)" in capsys.readouterr().out
