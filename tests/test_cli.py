"""The command itself: quick, light, and clear when something is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtnlg import app

MTNLG = str(Path(sys.executable).parent / "mtnlg")
HEAVY = ("torch", "deepspeed", "transformers", "vllm", "lm_eval", "datasets", "megatron", "matplotlib", "numpy")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MTNLG, *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_names_every_verb() -> None:
    result = run("--help")
    assert result.returncode == 0
    for verb in ("data", "train", "convert", "evaluate", "serve", "generate", "keys"):
        assert verb in result.stdout


VERBS = ["data prepare", "train", "convert", "evaluate", "evaluate compare", "evaluate gate", "evaluate rescore"]
VERBS += ["serve", "generate", "keys add", "keys list", "keys revoke", "runs compare"]
VERBS += ["checkpoint inspect", "checkpoint verify", "checkpoint diff", "cache list", "cache remove"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_s_help_shows_an_example(verb: str) -> None:
    result = run(*verb.split(), "--help")
    assert result.returncode == 0
    assert f"Example: mtnlg {verb}" in result.stdout


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys, mtnlg\ntry:\n  sys.argv = ['mtnlg', '--help']; mtnlg.main()\nexcept SystemExit: pass\n"
        f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip().splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "configs/train/dmeo.yaml"], "did you mean configs/train/demo.yaml?"),
        (["train", "configs/train/demo.yaml", "nonsense"], "override 'nonsense' is not of the form section.key=value"),
        (["train", "configs/train/demo.yaml", "model=huge"], "no configuration called 'huge'; there are: 1.3b, 125m"),
        (["data", "prepare", "out", "--data", "gone.txt"], "no file or folder at gone.txt"),
        (["evaluate", "gone", "--tasks", "boolq"], "gone"),
        (["evaluate", "gone", "--tasks", "boolq", "--shots", "one"], "--shots 'one': expected numbers"),
        (["convert", "gone", "out", "--to", "hf"], "gone"),
        (["serve", "gone"], "gone"),
    ],
)
def test_a_mistake_is_one_clear_line_and_a_non_zero_exit(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("mtnlg: ")
    assert message in lines[0]


def test_dry_run_prints_the_530b_without_building_it(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: mt-nlg-530b\nlayout: {tensor_parallel_size: 8, pipeline_parallel_size: 35, data_parallel_size: 8}\n"
        "data: {path: nowhere}\ntraining: {train_tokens: 270000000000, global_batch_size: 1920}\nout: nowhere\n"
    )
    result = run("train", str(config), "--dry-run")
    assert result.returncode == 0
    assert "105 layers, hidden 20480, 128 heads, 529.6 B parameters" in result.stderr
    assert "2240 ranks" in result.stderr
    assert "240 micro-batches of 1 a replica" in result.stderr


def test_the_command_is_the_installed_one() -> None:
    assert app.info.name == "mtnlg"
