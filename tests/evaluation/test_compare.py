"""Comparing run folders and gating on them: synthetic folders as `mtnlg evaluate` writes them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.comparison.compare import compare
from evaluation.comparison.flips import find_flips
from evaluation.comparison.gate import gate, judge
from evaluation.comparison.paired import PairedCell, pair_runs
from evaluation.run_folder import RunFolder
from evaluation.statistics import paired_difference
from foundation.errors import UserError
from foundation.files import read_json, sha256_file, write_json, write_text

Sample = dict[str, Any]
Cells = Mapping[tuple[str, int, int], Sequence[Sample]]


def sample(number: int, right: float, *, question: str = "", margin: float = 1.0, **fields: Any) -> Sample:
    """A document with two choices, of which the first is right and wins by `margin` where the run is right."""
    text = question or f"Question {number}?"
    scores = [-3.0, -3.0 - margin] if right else [-3.0 - margin, -3.0]
    return {
        "doc_id": number,
        "doc": {"question": text, **fields},
        "target": "0",
        "arguments": {
            f"gen_args_{index}": {"arg_0": f"A long passage. {text}", "arg_1": f" answer {index}"} for index in (0, 1)
        },
        "filtered_resps": [[score, False] for score in scores],
        "metrics": ["acc", "acc_norm"],
        "acc": right,
        "acc_norm": 1.0 - right,
    }


def write_run(folder: Path, cells: Cells, tasks: Mapping[str, Any] | None = None, **settings: Any) -> Path:
    """A run folder of these samples, by task, shots and seed."""
    seeds = list(dict.fromkeys(seed for _, _, seed in cells))
    records = []
    for (task, shots, seed), samples in cells.items():
        name = f"{task}-{shots}shot" + (f"-seed{seed}" if len(seeds) > 1 else "")
        path = folder / "samples" / f"{name}.jsonl"
        write_text(path, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in samples))
        records.append({"task": task, "shots": shots, "seed": seed, "samples_sha256": sha256_file(path)})
    document = {
        "format": "mtnlg-evaluation",
        "model": {"path": str(folder), "files_sha256": "0" * 64},
        "settings": {"limit": None, "backend": "hf", "dtype": "float32", "seeds": seeds, **settings},
        "tasks": tasks or {task: {"metric": "acc", "cluster": None} for task, _, _ in cells},
        "cells": records,
    }
    write_json(folder / "results.json", document)
    return folder


def run_of(folder: Path, scores: Sequence[float], task: str = "piqa", **fields: Any) -> Path:
    return write_run(folder, {(task, 0, 1): [sample(number, right, **fields) for number, right in enumerate(scores)]})


def _edit(folder: Path, change: Any) -> None:
    document = read_json(folder / "results.json")
    change(document)
    write_json(folder / "results.json", document)


# Reading a run folder.


def test_a_models_folder_leads_to_its_run(tmp_path: Path) -> None:
    run_of(tmp_path / "model" / "evaluation", [1, 0])
    run = RunFolder.open(tmp_path / "model")
    assert run.path == tmp_path / "model" / "evaluation"
    assert [one["acc"] for one in run.samples(run.cells[0])] == [1, 0]


def test_samples_are_read_by_lines_of_the_file(tmp_path: Path) -> None:
    texts = ["one\u2028two", "three\x85four\x0bfive", "six\r\nseven"]
    cells = {("piqa", 0, 1): [sample(number, 1, question=text) for number, text in enumerate(texts)]}
    run = RunFolder.open(write_run(tmp_path, cells))
    assert [one["doc"]["question"] for one in run.samples(run.cells[0])] == texts


def test_several_seeds_name_the_files(tmp_path: Path) -> None:
    cells = {("piqa", 1, seed): [sample(0, right)] for seed, right in ((1, 1.0), (2, 0.0))}
    run = RunFolder.open(write_run(tmp_path, cells))
    assert [cell.name for cell in run.cells] == ["piqa-1shot-seed1", "piqa-1shot-seed2"]
    assert [next(run.samples(cell))["acc"] for cell in run.cells] == [1, 0]


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path)
    run_of(tmp_path, [1])
    _edit(tmp_path, lambda document: document.update(format="other"))
    with pytest.raises(UserError, match="its format is not 'mtnlg-evaluation'"):
        RunFolder.open(tmp_path)
    write_text(tmp_path / "results.json", "{")
    with pytest.raises(UserError, match=r"results.json is not valid JSON"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("key", ["tasks", "cells", "settings", "model"])
def test_results_of_another_version_are_named(tmp_path: Path, key: str) -> None:
    run_of(tmp_path, [1])
    _edit(tmp_path, lambda document: document.pop(key))
    with pytest.raises(UserError, match=f"results.json has no '{key}'"):
        RunFolder.open(tmp_path)


def test_a_cell_without_a_hash_is_named(tmp_path: Path) -> None:
    run_of(tmp_path, [1])
    _edit(tmp_path, lambda document: document["cells"][0].pop("samples_sha256"))
    with pytest.raises(UserError, match="cell 0 has no 'samples_sha256'"):
        RunFolder.open(tmp_path)


def test_edited_and_missing_samples_are_named(tmp_path: Path) -> None:
    good, bad = run_of(tmp_path / "good", [1, 0]), run_of(tmp_path / "bad", [1, 0])
    file = bad / "samples" / "piqa-0shot.jsonl"
    file.write_text(file.read_text().replace('"acc": 0', '"acc": 1'))
    for call in (lambda: compare(good, bad), lambda: gate(bad, good)):
        with pytest.raises(UserError, match=r"bad/samples/piqa-0shot.jsonl is damaged or edited"):
            call()
    file.unlink()
    with pytest.raises(UserError, match=r"bad/samples/piqa-0shot.jsonl is missing"):
        compare(good, bad)


# Matching cells and documents.


def test_documents_are_matched_by_number_and_row(tmp_path: Path) -> None:
    first = [sample(0, 1), sample(1, 1), sample(2, 1), sample(3, 0)]
    second = [sample(3, 1), sample(1, 0), sample(2, 0, question="Another?"), sample(9, 0)]
    runs = [
        RunFolder.open(write_run(tmp_path / name, {("piqa", 0, 1): samples}))
        for name, samples in (("a", first), ("b", second))
    ]
    (cell,) = pair_runs(*runs).cells
    assert (cell.gained, cell.lost, cell.documents) == ((3,), (1,), 2)
    assert (cell.other_data, cell.only_first, cell.only_second) == (1, 1, 1)
    assert cell.accuracies == (0.5, 0.5)


def test_zero_shots_match_whatever_the_seed(tmp_path: Path) -> None:
    runs = [
        RunFolder.open(write_run(tmp_path / str(seed), {("piqa", shots, seed): [sample(0, 1)] for shots in (0, 4)}))
        for seed in (1, 2)
    ]
    found = pair_runs(*runs)
    assert [cell.title for cell in found.cells] == ["piqa at 0 shots"]
    assert [cell.title for cell in found.only_first] == ["piqa at 4 shots"]
    assert [cell.seed for cell in found.only_second] == [2]


def test_the_tasks_metric_and_cluster_count(tmp_path: Path) -> None:
    tasks = {"race_h": {"metric": "acc_norm", "cluster": "article"}}
    runs = []
    for name, right in (("a", 0.0), ("b", 1.0)):
        samples = [sample(number, right, article=f"Article {number // 5}") for number in range(20)]
        runs.append(RunFolder.open(write_run(tmp_path / name, {("race_h", 0, 1): samples}, tasks)))
    (cell,) = pair_runs(*runs).cells
    assert cell.difference is not None
    assert (cell.difference.clusters, cell.difference.documents, cell.difference.value) == (4, 20, -1)
    # Four articles that all got worse: two of the sixteen patterns of signs are as far out, and both count half.
    assert cell.difference.p_value == pytest.approx(1 / 16)


def test_a_row_without_its_cluster_is_named(tmp_path: Path) -> None:
    tasks = {"race_h": {"metric": "acc", "cluster": "article"}}
    run = write_run(tmp_path, {("race_h", 0, 1): [sample(0, 1)]}, tasks)
    with pytest.raises(UserError, match=r"race_h-0shot.jsonl: document 0 has no 'article'"):
        compare(run, run)


def test_runs_without_anything_in_common(tmp_path: Path) -> None:
    piqa, boolq = run_of(tmp_path / "a", [1, 0]), run_of(tmp_path / "b", [1, 0], task="boolq")
    other = run_of(tmp_path / "c", [1, 0], question="Of other data?")
    with pytest.raises(UserError, match="no cell in common"):
        compare(piqa, boolq)
    with pytest.raises(UserError, match=r"no document in common: .* it is other data"):
        compare(piqa, other)
    with pytest.raises(UserError, match="neither run has a task 'wic'; they have: boolq, piqa"):
        compare(piqa, boolq, task="wic")


# What compare prints and writes.


def test_a_clear_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run_of(tmp_path / "a", [0] * 30 + [1] * 10), run_of(tmp_path / "b", [1] * 20 + [0] * 11 + [1] * 9)
    assert not compare(a, b, json_path=tmp_path / "out.json")
    text = capsys.readouterr().out
    assert "25.0" in text and "72.5" in text and "+47.5 [" in text and "<0.001*" in text
    assert "cells that differ significantly: 1 of 1" in text
    (cell,) = read_json(tmp_path / "out.json")["cells"]
    assert (cell["right_in_a_only"], cell["right_in_b_only"]) == ([30], list(range(20)))
    assert cell["accuracy"] == {"a": 0.25, "b": 0.725} and cell["difference"]["value"] == 0.475
    assert cell["p_holm"] == cell["difference"]["p_value"] < 0.001


def test_equal_runs_differ_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run_of(tmp_path / "a", [1, 0, 1]), run_of(tmp_path / "b", [1, 0, 1])
    assert compare(a, b, flips=3)
    text = capsys.readouterr().out
    assert "cells that differ significantly: 0 of 1" in text and "changed sides" not in text


def test_holm_counts_the_cells_compared(tmp_path: Path) -> None:
    def run(name: str, rights: Sequence[int]) -> Path:
        cells = {
            (task, 0, 1): [sample(number, float(number < right)) for number in range(20)]
            for task, right in zip(("boolq", "piqa", "wic"), rights, strict=True)
        }
        return write_run(tmp_path / name, cells)

    a, b = run("a", [5, 5, 5]), run("b", [11, 5, 6])
    compare(a, b, json_path=tmp_path / "all.json")
    compare(a, b, task="boolq", json_path=tmp_path / "one.json")
    together, alone = read_json(tmp_path / "all.json")["cells"], read_json(tmp_path / "one.json")["cells"]
    assert alone[0]["p_holm"] == pytest.approx(2 * 0.5**6 / 2)
    assert [cell["p_holm"] for cell in together] == pytest.approx([3 * alone[0]["p_holm"], 1, 1])


def test_differing_data_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_run(tmp_path / "a", {("piqa", 0, 1): [sample(n, 1) for n in range(5)], ("wic", 1, 1): [sample(0, 1)]})
    b = write_run(tmp_path / "b", {("piqa", 0, 1): [sample(0, 1, question="Other?"), sample(1, 1), sample(2, 0)]})
    compare(a, b)
    text = capsys.readouterr().out
    assert "piqa at 0 shots: documents left out because A and B hold other rows: 1" in text
    assert "piqa at 0 shots: documents only in A: 2; compared: 2" in text
    assert "only in A: wic at 1 shot" in text


def test_flipped_documents_are_shown_the_largest_change_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (
        write_run(
            tmp_path / name,
            {("piqa", 0, 1): [sample(0, 1 - up), sample(1, up, margin=0.01), sample(2, up, margin=5.0), sample(3, 1)]},
        )
        for name, up in (("a", 0.0), ("b", 1.0))
    )
    compare(a, b, flips=2)
    text = capsys.readouterr().out
    assert "piqa at 0 shots: 2 of 3 documents that changed sides" in text
    assert "document 1:" not in text and "document 3:" not in text
    shown = text[text.index("document 2: wrong in A, right in B") :]
    assert "A long passage. Question 2?" in shown
    assert "A    -8.000  B    -3.000  answer 0  <- right" in shown and "A    -3.000  B    -8.000  answer 1\n" in shown
    assert shown.index("document 0: right in A, wrong in B") > 0


def test_choices_in_the_context_and_a_single_answer(tmp_path: Path) -> None:
    def run(name: str, right: float) -> RunFolder:
        partial = sample(0, right)
        for index, argument in enumerate(partial["arguments"].values()):
            argument |= {"arg_0": f"Because option {index}", "arg_1": " was late."}
        word = sample(1, right)
        word["arguments"] = {"gen_args_0": {"arg_0": "word " * 100 + "the last", "arg_1": " one"}}
        word["filtered_resps"] = [[-2.0 - right, bool(right)]]
        return RunFolder.open(write_run(tmp_path / name, {("winogrande", 0, 1): [partial, word]}))

    first, second = run("a", 1.0), run("b", 0.0)
    (cell,) = pair_runs(first, second).cells
    partial, word = sorted(find_flips(first, second, cell, 5), key=lambda flip: flip.document)
    assert (partial.prompt, [choice.text for choice in partial.choices]) == (
        "was late.",
        ["Because option 0", "Because option 1"],
    )
    assert word.prompt.startswith("…") and word.prompt.endswith("the last") and len(word.prompt) < 200
    assert (word.choices[0].scores, word.change, word.gained) == ((-3.0, -2.0), 1.0, False)


# The gate.


def test_gate_fails_a_worse_run_and_passes_a_better_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = run_of(tmp_path / "good", [1] * 40), run_of(tmp_path / "bad", [0] * 10 + [1] * 30)
    assert not gate(bad, good)
    assert "FAILED  piqa at 0 shots: 25.0 points worse, p <0.001" in capsys.readouterr().out
    assert gate(good, bad)
    assert "gate passed: no cell of 1 is significantly worse at 0.05; drops below" in capsys.readouterr().out


def test_gate_lets_an_insignificant_drop_pass_but_says_what_it_cannot_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, run = run_of(tmp_path / "base", [1] * 25 + [0] * 25), run_of(tmp_path / "run", [0] * 3 + [1] * 22 + [0] * 25)
    assert gate(run, base)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("piqa"))
    assert "-6.0 [" in line and line.endswith("passed")
    assert 10 < float(line.split()[-2]) < 25


def test_gate_notices_less_in_a_cell_of_a_larger_grid(tmp_path: Path) -> None:
    run = RunFolder.open(run_of(tmp_path, [1, 0] * 100))
    cells = pair_runs(run, run).cells
    (alone,), many = judge(cells, 0.05, 0.0), judge(cells * 27, 0.05, 0.0)
    assert alone.detectable is not None and many[0].detectable is not None
    assert 1.1 * alone.detectable < many[0].detectable < 2.5 * alone.detectable


def test_gate_tolerates_what_it_is_told_to(tmp_path: Path) -> None:
    base, run = run_of(tmp_path / "base", [1] * 400), run_of(tmp_path / "run", [0] * 8 + [1] * 392)
    assert not gate(run, base)
    assert not gate(run, base, tolerance=1.9)
    assert gate(run, base, tolerance=2.0)
    assert gate(run, base, alpha=0.001)


def test_gate_fails_a_run_that_lacks_a_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = {(task, 0, 1): [sample(number, 1) for number in range(9)] for task in ("piqa", "wic")}
    base, run = write_run(tmp_path / "base", both), run_of(tmp_path / "run", [1] * 9)
    assert not gate(run, base)
    assert "FAILED  wic at 0 shots: the run lacks it" in capsys.readouterr().out
    assert gate(base, run)


def test_gate_fails_on_other_data_and_says_when_documents_are_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = run_of(tmp_path / "base", [1] * 9)
    other = write_run(tmp_path / "other", {("piqa", 0, 1): [sample(0, 1), sample(1, 1, question="Other?")]})
    assert not gate(other, base)
    assert "documents whose rows are not the baseline's: 1" in capsys.readouterr().out
    few = run_of(tmp_path / "few", [1] * 3)
    assert gate(few, base)
    text = capsys.readouterr().out
    assert "documents only in the baseline: 6; compared: 3" in text
    assert "too few documents to notice any drop: piqa at 0 shots" in text


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 1.0}, {"tolerance": -1.0}, {"tolerance": 100.0}])
def test_gate_options_that_make_no_sense(tmp_path: Path, options: dict[str, float]) -> None:
    run = run_of(tmp_path, [1])
    with pytest.raises(UserError, match=r"--alpha|--tolerance"):
        gate(run, run, **options)


def test_gates_false_alarms_over_a_grid_stay_near_alpha(tmp_path: Path) -> None:
    """Equally good runs of four tasks, one in clusters: a gate without correction would fail one in six."""
    run = RunFolder.open(run_of(tmp_path, [1]))
    rng = np.random.default_rng(4)
    failed, uncorrected = [], []
    for _ in range(800):
        cells = []
        for clusters in (None, None, None, [number // 4 for number in range(120)]):
            first, second = ((rng.random(120) < 0.6).astype(int).tolist() for _ in range(2))
            difference = paired_difference(first, second, clusters)
            cells.append(PairedCell(run.cells[0], run.cells[0], "acc", (0.6, 0.6), difference, (), (), 0, 0, 0))
        failed.append(any(verdict.failure for verdict in judge(cells, alpha=0.05, tolerance=0.0)))
        uncorrected.append(any(cell.difference.p_worse < 0.05 for cell in cells if cell.difference))
    assert 0.025 < np.mean(failed) < 0.07
    assert np.mean(uncorrected) > 0.13
