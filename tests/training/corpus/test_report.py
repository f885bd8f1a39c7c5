"""The report's figures beside those of the folder that it is made of."""

import re
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest

from foundation.errors import UserError
from tests.training.corpus.report_folder import DATASETS, HOSTILE, LEFT, RULES, TOKENS_WRITTEN, write_corpus
from training.corpus.report.contamination import contamination_part
from training.corpus.report.duplicates import duplicates_part
from training.corpus.report.flow import steps, waterfall
from training.corpus.report.folder import finished_stages
from training.corpus.report.page import short, write_report
from training.corpus.report.quality import quality_part
from training.corpus.report.samples import DROPPED_A_RULE, KEPT, MOST_CHARACTERS, samples
from training.corpus.report.tokens import blend_part, written_tokens


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("report") / "corpus")


def test_steps_hold_what_the_stages_left_and_tokens_end_where_they_were_written(corpus: Path) -> None:
    tokens = written_tokens(corpus, DATASETS)
    found = steps(finished_stages(corpus), DATASETS, tokens)
    assert {step.stage: tuple(one.documents for one in step.amounts.values()) for step in found} == LEFT
    assert [found[-1].amounts[name].tokens for name in DATASETS] == pytest.approx(TOKENS_WRITTEN)
    assert found[0].total.tokens is None
    extracted = found[1].amounts["web"]
    # The documents are equally long but for their numbers, so tokens go with documents.
    assert extracted.tokens == pytest.approx(TOKENS_WRITTEN[1] * 50 / 15, rel=0.03)
    assert found[2].rules == {RULES["clean"]: {"web": 15, "news": 2}}


def test_waterfall_fills_the_width_and_what_is_lost_stands_behind_what_is_left(corpus: Path) -> None:
    found = steps(finished_stages(corpus), DATASETS, {})
    rows = waterfall(found, "documents", "documents")
    assert [row.value for row in rows] == [sum(left) for left in LEFT.values()]
    assert sum(bar.width for bar in rows[0].bars) == pytest.approx(100)
    for before, row in pairwise(rows):
        *kept, lost = row.bars
        assert lost.dataset is None
        assert lost.start == pytest.approx(sum(bar.width for bar in kept)) == pytest.approx(row.value)
        assert lost.start + lost.width == pytest.approx(before.value)
    assert rows[1].change == pytest.approx(-10)
    assert waterfall(found, "tokens", "tokens") == []


def test_samples_follow_documents_and_cover_every_rule(corpus: Path) -> None:
    stages = {stage.name: stage for stage in finished_stages(corpus)}
    clean = samples(stages["clean"], "web")
    assert [one.rule for one in clean] == [""] * KEPT + [RULES["clean"]] * DROPPED_A_RULE
    assert clean == samples(stages["clean"], "web")
    assert all(len(one.text) == MOST_CHARACTERS and one.more > 0 for one in clean)
    # One that is shown, and that later stages keep, is shown there too.
    shown = {one.id for one in samples(stages["extract"], "books") if not one.rule}
    assert shown == {one.id for one in samples(stages["deduplicate"], "books") if not one.rule}
    raw = samples(stages["sources"], "web")[0]
    assert raw.text.startswith("<html><p>")


def test_quality_counts_kept_and_dropped_by_tenths(corpus: Path) -> None:
    stage = next(stage for stage in finished_stages(corpus) if stage.name == "quality")
    part = quality_part(stage, DATASETS, {"quality": {"positives": ["books"]}})
    assert part is not None
    assert [(tenth.kept, tenth.dropped) for tenth in part.tenths] == [(0, 15), *[(0, 0)] * 8, (20, 0)]
    assert ("accuracy on them", "0.750") in part.about
    assert part.curve.startswith("data:image/png;base64,iVBOR")


def test_cuts_are_counted_by_task_and_shown_with_what_is_around_them(corpus: Path) -> None:
    stage = finished_stages(corpus)[-1]
    part = contamination_part(stage, DATASETS, {"decontaminate": {"texts": "tasks.jsonl"}})
    assert part is not None
    assert (part.cuts, part.cut, part.dropped) == ({"boolq": {"books": 2}}, 2, 1)
    (cut,) = part.examples
    assert (cut.before, cut.matched, cut.after) == ("Before it. ", f"{HOSTILE} is in a task", ". After it.")
    assert contamination_part(stage, DATASETS, {"decontaminate": {}}) is None


def test_clusters_are_counted_by_size_and_pairs_show_where_they_differ(corpus: Path) -> None:
    stage = next(stage for stage in finished_stages(corpus) if stage.name == "deduplicate")
    part = duplicates_part(stage)
    assert part is not None
    found = [(one.sizes, one.clusters, one.documents) for one in part.sizes]
    assert found == [("2", 5, 10), ("3", 2, 6), ("4", 0, 0), ("5 to 8", 0, 0), ("9 to 16", 1, 9), *found[5:]]
    assert found[5:] == [("17 to 32", 0, 0), ("33 to 64", 1, 40)]
    assert part.removed[("books", "news")] == {"near duplicate": 6}
    (pair,) = part.pairs
    assert [text for text, alone in pair.kept.pieces if alone] == ["three."]
    assert [text for text, alone in pair.dropped.pieces if alone] == ["four."]
    assert "".join(text for text, _ in pair.dropped.pieces) == f"One {HOSTILE} four."


def test_blend_is_the_plan_with_what_was_held_out(corpus: Path) -> None:
    part = blend_part(corpus)
    assert part is not None
    found = [(one.name, one.tokens, one.validation_tokens, one.epochs) for one in part.datasets]
    assert found == [("books", 8_900, 100, 1.5), ("web", 14_900, 100, 1.5), ("news", 19_900, 100, 1.5)]


def test_page_of_a_corpus_that_is_not_finished_has_what_there_is(tmp_path: Path) -> None:
    out = write_corpus(tmp_path / "corpus", upto="clean")
    page = write_report(out).read_text()
    assert "Bytes of text" in page
    assert 'id="duplicates"' not in page
    assert re.findall(r'<th scope="row">(\w+)</th>\s*<td class="bar">', page) == ["sources", "extract", "clean"] * 2


def test_no_text_of_the_corpus_becomes_markup(corpus: Path) -> None:
    page = write_report(corpus).read_text()
    assert HOSTILE not in page
    assert "<img src=x" not in page
    assert f"clean: {HOSTILE}" in unescape(page)


def test_a_folder_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished stage"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (1234, "1.23 k"), (45_600_000, "45.6 M"), (3.386e11, "339 G")]
)
def test_short_numbers_have_three_digits(value: float, text: str) -> None:
    assert short(value) == text
