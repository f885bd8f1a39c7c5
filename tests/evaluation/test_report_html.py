"""report.html: what it holds, and that it is one file which loads nothing and runs nothing of the data."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evaluation.report.breakdown import breakdowns
from evaluation.report.curves import curves
from evaluation.report.reports import write_reports
from evaluation.report.samples import MOST_CHARACTERS, MOST_SAMPLES, question_of
from evaluation.run_folder import RunFolder
from evaluation.statistics import accuracy_interval
from tests.evaluation.report_run import CHOICES, HOSTILE, change_run, interval_of, read_run, write_run

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Tags with attributes, the text of scripts and styles, and of table cells; refuses tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"th", "td"}:
            self.rows[-1].append("")
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in self.raw:
            self.raw[self._open[-1]][-1] += data
        elif {"th", "td"} & set(self._open):
            self.rows[-1][-1] += data

    @property
    def table(self) -> list[list[str]]:
        return [[" ".join(cell.split()) for cell in row] for row in self.rows]

    def data(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.raw["script"][0])
        return loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("run"), documents=60)
    write_reports(run)
    return run


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


def samples_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples" / f"{name}.jsonl").read_text().splitlines()]


def cell_of(page: Page, name: str) -> dict[str, Any]:
    return next(cell for cell in page.data()["cells"] if cell["name"] == name)


def test_table_has_our_intervals_and_the_published_rows(folder: Path, page: Page) -> None:
    cell = next(cell for cell in read_run(folder)["cells"] if cell["task"] == "hellaswag" and cell["shots"] == 20)
    value, low, high = interval_of(cell)
    place = next(number for number, row in enumerate(page.table) if row[0] == "HellaSwag")
    assert page.table[place][3] == f"{value:.1f} [{low:.1f}, {high:.1f}] (20)"
    assert page.table[place + 1][:4] == ["MT-NLG 530B", "80.2", "80.2", "82.4 (20)"]
    assert page.table[place + 2][0] == "GPT-3 175B"


def test_page_loads_nothing_and_its_policy_allows_only_its_own_style_and_script(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in {"img", "iframe", "object", "embed", "link", "base"}
        assert not {"src", "style", "srcset", "action", "data"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    (style,) = page.raw["style"]
    assert "url(" not in style and "@import" not in style
    policies = [about for tag, about in page.tags if tag == "meta" and about.get("http-equiv")]
    assert [about["http-equiv"] for about in policies] == ["Content-Security-Policy"]
    policy = policies[0]["content"] or ""
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, page.raw["script"][1])
    ]
    assert policy.split("; ")[:3] == [
        "default-src 'none'",
        f"style-src 'sha256-{hashes[0]}'",
        f"script-src 'sha256-{hashes[1]}'",
    ]
    assert "unsafe" not in policy


def test_hostile_texts_stay_text(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["hans", "wic"])
    document = read_run(tmp_path)
    hostile = {"path": HOSTILE, "files_sha256": HOSTILE, "manifest_sha256": HOSTILE, "about": {HOSTILE: HOSTILE}}
    table = {**document["table"], "columns": [HOSTILE, "1-shot", "few-shot"]}
    tasks = {**document["tasks"], "wic": {**document["tasks"]["wic"], "title": HOSTILE, "notes": [HOSTILE]}}
    change_run(tmp_path, model=hostile, table=table, tasks=tasks)
    write_reports(tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert [about.get("type") for tag, about in page.tags if tag == "script"] == ["application/json", None]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert any(HOSTILE in text for text in page.data()["texts"])
    assert cell_of(page, "wic-0shot")["title"] == HOSTILE
    assert page.table[0][1] == " ".join(HOSTILE.split())


def test_charts_place_points_by_accuracy(folder: Path) -> None:
    document = read_run(folder)
    charts = {chart.title: chart for chart in curves(document, {"wic": 50.0})}
    assert list(charts) == [row["title"] for row in document["table"]["rows"]]
    wic = charts["WiC"]
    (high_y, high), (low_y, low) = ((float(y), float(label)) for y, label in (wic.y_ticks[-1], wic.y_ticks[0]))
    # SVG counts from the top.
    assert high_y < low_y and high > low
    cells = [cell for cell in document["cells"] if cell["task"] == "wic"]
    for point, cell in zip(wic.points, cells, strict=True):
        for y, percent in zip((point.y, point.low, point.high), interval_of(cell), strict=True):
            assert low + (low_y - y) / (low_y - high_y) * (high - low) == pytest.approx(percent, abs=0.1)
    assert [point.x for point in wic.points] == sorted(point.x for point in wic.points)
    assert wic.chance == pytest.approx(low_y - (50 - low) / (high - low) * (low_y - high_y), abs=0.1)
    assert len(wic.marks) == 6
    # PIQA's number of examples is not known of MT-NLG, and Gopher has one figure.
    assert [mark.hollow for mark in charts["PIQA"].marks] == [False, False, True, False, False, False, False]


def test_breakdown_gives_each_group_its_accuracy_in_the_datas_order(folder: Path) -> None:
    (hans,) = breakdowns(RunFolder.open(folder))
    assert (hans.task, hans.fields, hans.shots) == ("hans", ("heuristic", "label", "subcase"), (0, 1, 4))
    assert [group.depth for group in hans.groups].count(3) == 30
    assert [group.name for group in hans.groups if group.depth == 1] == [
        "lexical overlap",
        "subsequence",
        "constituent",
    ]
    assert [group.depth for group in hans.groups[:9]] == [1, 2, 3, 3, 3, 3, 3, 2, 3]
    assert hans.groups[1].name == "right answer: True"
    samples = [sample for sample in samples_of(folder, "hans-4shot") if sample["doc"]["heuristic"] == "subsequence"]
    expected = accuracy_interval([s["acc"] for s in samples], [s["doc"]["template"] for s in samples])
    group = next(group for group in hans.groups if group.name == "subsequence")
    assert group.documents == len(samples) == 20
    found = group.accuracies[2]
    assert (found.shots, found.value, found.low, found.high) == (
        4,
        *(pytest.approx(100 * end) for end in (expected.value, expected.low, expected.high)),
    )


def test_breakdown_is_on_the_page(page: Page, folder: Path) -> None:
    (hans,) = breakdowns(RunFolder.open(folder))
    row = next(row for row in page.table if row[0] == "constituent")
    group = next(group for group in hans.groups if group.name == "constituent")
    assert row[2].startswith(f"{group.accuracies[0].value:.1f} [{group.accuracies[0].low:.1f},")
    assert row[-1] == str(group.documents)


def test_samples_are_the_documents_with_choices_and_outcome(folder: Path, page: Page) -> None:
    texts = page.data()["texts"]
    shown = cell_of(page, "race_h-0shot")
    stored = samples_of(folder, "race_h-0shot")
    assert shown["documents"] == len(stored) == len(shown["samples"])
    for sample, line in zip(shown["samples"], stored, strict=True):
        assert sample["document"] == line["doc_id"]
        assert sample["correct"] == bool(line["acc"])
        assert [texts[place] for place in sample["choices"]] == list(CHOICES["race_h"])
        assert sample["scores"] == [round(ll, 3) for ll, _ in line["filtered_resps"]]
        assert sample["right"] == int(line["target"])
        assert (sample["chosen"] == sample["right"]) == sample["correct"]


def test_few_shot_prompts_are_the_questions_part(folder: Path, page: Page) -> None:
    texts = page.data()["texts"]
    for task, few in (("hans", 4), ("lambada_cloze", 15), ("winogrande", 50)):
        few_shot = cell_of(page, f"{task}-{few}shot")["samples"]
        stored = samples_of(folder, f"{task}-{few}shot")
        for sample, line in zip(few_shot, stored, strict=True):
            prompt = texts[sample["prompt"]]
            assert "example answer" not in prompt
            assert prompt in line["arguments"]["gen_args_0"]["arg_0"]
            assert sample["omitted"] > 0
    zero_shot = cell_of(page, "hans-0shot")["samples"]
    few_shot = cell_of(page, "hans-4shot")["samples"]
    assert [sample["prompt"] for sample in zero_shot] == [sample["prompt"] for sample in few_shot]


def test_examples_drawn_for_each_document_are_left_out_too(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["wic"], examples_by_document=True)
    write_reports(tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    texts = page.data()["texts"]
    assert all("example answer" not in texts[sample["prompt"]] for sample in cell_of(page, "wic-32shot")["samples"])


def test_long_prompts_and_many_samples_are_bounded(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["wic"], documents=MOST_SAMPLES * 3, skill=0.9)
    lines = samples_of(tmp_path, "wic-0shot")
    shown = Page(_page_text(tmp_path))
    cell = cell_of(shown, "wic-0shot")
    outcomes = [sample["correct"] for sample in cell["samples"]]
    wrong = sum(not line["acc"] for line in lines)
    assert 0 < wrong < MOST_SAMPLES // 2
    assert (len(outcomes), outcomes.count(False)) == (MOST_SAMPLES, wrong)
    assert [sample["document"] for sample in cell["samples"]] == sorted(
        sample["document"] for sample in cell["samples"]
    )
    assert max(len(text) for text in shown.data()["texts"]) <= MOST_CHARACTERS


def test_seeds_are_apart_in_the_samples_and_averaged_in_the_breakdown(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["hans"], seeds=(1, 2))
    page = Page(_page_text(tmp_path))
    names = [cell["name"] for cell in page.data()["cells"]]
    assert [name for name in names if "4shot" in name] == ["hans-4shot-seed1", "hans-4shot-seed2"]
    (hans,) = breakdowns(RunFolder.open(tmp_path))
    means = [
        sum(s["acc"] for s in samples_of(tmp_path, f"hans-4shot-seed{seed}") if s["doc"]["heuristic"] == "constituent")
        / 10
        for seed in (1, 2)
    ]
    group = next(group for group in hans.groups if group.name == "constituent")
    assert group.accuracies[-1].value == pytest.approx(100 * sum(means) / 2)


def sample(choices: Sequence[tuple[str, str]], lls: Sequence[float], **others: Any) -> dict[str, Any]:
    return {
        "arguments": {f"gen_args_{n}": {"arg_0": a, "arg_1": b} for n, (a, b) in enumerate(choices)},
        "filtered_resps": [[ll, False] for ll in lls],
        **others,
    }


def test_choices_in_the_prompt_are_shown_as_choices() -> None:
    pair = [
        ("The cup did not fit the case: the cup", " was big."),
        ("The cup did not fit the case: the case", " was big."),
    ]
    question = question_of(sample(pair, [-3.0, -2.0], target="was big.", acc=0.0), "acc")
    assert question.prompt == "The cup did not fit the case: the "
    assert question.choices == ("cup was big.", "case was big.")
    assert (question.chosen, question.right) == (1, 0)


def test_the_normalised_metric_chooses_by_character() -> None:
    pair = [("Q", " long answer"), ("Q", " no")]
    lines = sample(pair, [-6.0, -4.0], target="0", acc=0.0, acc_norm=1.0)
    assert question_of(lines, "acc_norm").chosen == 0
    assert question_of(lines, "acc").chosen == 1


def test_a_right_choice_that_the_sample_does_not_tell_is_not_marked() -> None:
    three = [("Q", " a"), ("Q", " b"), ("Q", " c")]
    assert question_of(sample(three, [-1.0, -2.0, -3.0], target="d", acc=0.0), "acc").right is None
    assert question_of(sample(three, [-1.0, -2.0, -3.0], target="c", acc=0.0), "acc").right == 2


def test_how_it_was_made_is_told(page: Page) -> None:
    row = next(row for row in page.table if row[0] == "wic-32shot")
    assert row[1:9] == ["60", "32", "120", "0", "90000", "30000", "3.0", "12.5"]
    source = next(row for row in page.table if row[0] == "wic, validation")
    assert source[1:4] == ["folder data", "30", "cd" * 6]
    assert re.match(r"validation.jsonl.gz (ab){6}$", source[4])


def _page_text(folder: Path) -> str:
    write_reports(folder)
    return (folder / "report.html").read_text()
