"""Prompts and answers of the tasks that lm-eval lacks or that read odd text, on rows written here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluation.rows import anli_row, hans_row, race_articles, race_questions, wic_row
from evaluation.sources import open_task_data
from foundation.errors import UserError
from tests.evaluation.conftest import write_rows
from tests.evaluation.test_parity import our_task


def requests(task: Any, document: int, shots: int = 0) -> list[tuple[str, str]]:
    """Pairs of context and continuation that lm-eval makes of a document."""
    task.set_fewshot_seed(0)
    doc = task.eval_docs[document]
    made = task.construct_requests(doc=doc, ctx=task.fewshot_context(doc, num_fewshot=shots), metadata=(None, 0, 1))
    return [tuple(request.args) for request in (made if isinstance(made, list) else [made])]


def race_record(article: str, question: str, answer: str = "B", options: Sequence[str] = ("a", "b", "c", "d")) -> Any:
    return {"example_id": "x", "article": article, "question": question, "options": list(options), "answer": answer}


@pytest.mark.parametrize(
    ("text", "context", "answer"),
    [
        ("He came to the bank", "He came to the", " bank"),
        ("She said.\n\nHe came  home", "She said.\n\nHe came ", " home"),
        ('I know."\n\n"You do," said the\n\nrecorder', 'I know."\n\n"You do," said', " the\n\nrecorder"),
        ("a\u2028b c\u00a0d", "a\u2028b", " c\u00a0d"),
        ("one \n\ntwo", "one", " \n\ntwo"),
    ],
)
def test_lambada_asks_what_follows_the_last_space(tmp_path: Path, text: str, context: str, answer: str) -> None:
    write_rows(tmp_path / "lambada/test.jsonl.gz", [{"text": text}])
    assert requests(our_task("lambada", 0, tmp_path), 0) == [(context, answer)]
    assert requests(our_task("lambada_cloze", 0, tmp_path), 0) == [(f"{context} ____. ->", answer)]


def test_lambada_examples_are_other_texts_with_one_space_before_the_answer(tmp_path: Path) -> None:
    texts = ["the first one", "the second two", "the third three"]
    write_rows(tmp_path / "lambada/test.jsonl.gz", [{"text": text} for text in texts])
    task = our_task("lambada_cloze", 2, tmp_path)
    for document, text in enumerate(texts):
        ((context, _),) = requests(task, document, shots=2)
        *examples, question = context.split("\n\n")
        assert question == f"{text.rsplit(' ', 1)[0]} ____. ->"
        others = {" ____. -> ".join(other.rsplit(" ", 1)) for other in texts if other != text}
        assert set(examples) == others


def test_lambada_is_right_only_if_greedy(tmp_path: Path) -> None:
    write_rows(tmp_path / "lambada/test.jsonl.gz", [{"text": "one two"}])
    task = our_task("lambada", 0, tmp_path)
    assert task.process_results(task.eval_docs[0], [(-0.1, False)]) == {"acc": 0}
    assert task.process_results(task.eval_docs[0], [(-9.0, True)]) == {"acc": 1}


def test_hans_is_posed_as_in_the_announcement(tmp_path: Path) -> None:
    records = [
        {
            "premise": "The banker forgot that the judge advised the professors .",
            "hypothesis": "The judge advised the professors .",
            "label": 0,
        },
        {"premise": "If the judge slept , the actor ran .", "hypothesis": "The judge slept .", "label": 1},
    ]
    about = {"heuristic": "subsequence", "subcase": "se_NP/S", "template": "temp1"}
    write_rows(tmp_path / "hans/validation.jsonl.gz", [{**record, **about} for record in records])
    write_rows(tmp_path / "hans/train.jsonl.gz", [{**records[1], **about}])
    task = our_task("hans", 1, tmp_path)
    first = (
        "The banker forgot that the judge advised the professors.\n"
        "Question: The judge advised the professors. True or False?\nAnswer:"
    )
    second = "If the judge slept, the actor ran.\nQuestion: The judge slept. True or False?\nAnswer:"
    assert requests(task, 0) == [(first, " True"), (first, " False")]
    assert requests(task, 0, shots=1)[0][0] == f"{second} False\n\n{first}"
    assert task.process_results(task.eval_docs[0], [(-1.0, False), (-2.0, False)])["acc"] == 1.0
    assert task.process_results(task.eval_docs[1], [(-1.0, False), (-2.0, False)])["acc"] == 0.0


def test_official_hans_file_is_read_as_it_is(tmp_path: Path) -> None:
    columns = ["gold_label", "sentence1_binary_parse", "sentence1", "sentence2", "pairID", "heuristic", "subcase"]
    lines = [[*columns, "template"], ["non-entailment", "( ( The", 'The "judge" ran .', "A .", "ex0", "h", "s", "t1"]]
    (tmp_path / "hans").mkdir()
    content = "".join("\t".join(line) + "\n" for line in lines)
    (tmp_path / "hans/heuristics_evaluation_set.txt").write_text(content)
    dataset = open_task_data("hans", str(tmp_path))
    about = {"heuristic": "h", "subcase": "s", "template": "t1"}
    assert list(dataset["validation"]) == [{"premise": 'The "judge" ran .', "hypothesis": "A .", "label": 1, **about}]
    assert list(dataset.sources["validation"].files) == ["hans/heuristics_evaluation_set.txt"]


def test_hans_labels_are_entailment_and_not() -> None:
    about = {"sentence1": "a", "sentence2": "b", "heuristic": "h", "subcase": "s", "template": "t"}
    assert [hans_row({"gold_label": label, **about})["label"] for label in ("entailment", "non-entailment")] == [0, 1]


def test_anli_labels_are_the_same_in_both_forms() -> None:
    hub = [anli_row({"premise": "p", "hypothesis": "h", "label": label}) for label in (0, 1, 2)]
    official = [anli_row({"context": "p", "hypothesis": "h", "label": label}) for label in "enc"]
    assert hub == official == [{"premise": "p", "hypothesis": "h", "label": label} for label in (0, 1, 2)]


def test_anli_answers_are_true_neither_false(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "anli/test_r2.jsonl.gz", [{"premise": "p", "hypothesis": "h", "label": label} for label in range(3)]
    )
    write_rows(tmp_path / "anli/dev_r2.jsonl.gz", [{"premise": "q", "hypothesis": "g", "label": 2}])
    task = our_task("anli_r2", 0, tmp_path)
    assert [answer for _, answer in requests(task, 0)] == [" True", " Neither", " False"]
    for document, scores in enumerate(([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0])):
        assert task.process_results(task.eval_docs[document], [(score, False) for score in scores])["acc"] == 1.0
    assert requests(task, 0, shots=1)[0][0].startswith("q\nQuestion: g True, False, or Neither?\nAnswer: False\n\np\n")
    assert "development set" in task.dataset.sources["train"].notes[0]


def test_anli_training_set_is_preferred_to_the_development_set(tmp_path: Path) -> None:
    for name, premise in (("dev_r2.jsonl.gz", "dev"), ("R2/train.jsonl.gz", "train")):
        write_rows(tmp_path / "anli" / name, [{"premise": premise, "hypothesis": "h", "label": 0}])
    dataset = open_task_data("anli_r2", str(tmp_path))
    assert dataset["train"][0]["premise"] == "train"
    assert dataset.sources["train"].notes == ["1 train rows, not the official 45,460"]


def test_wic_asks_for_the_word_as_it_stands_in_the_first_sentence(tmp_path: Path) -> None:
    record = {"word": "head", "sentence1": "Two Heads.", "sentence2": "A head.", "start1": 4, "end1": 9, "label": True}
    assert wic_row(record) == {**{k: v for k, v in record.items() if k != "word"}, "label": 1}
    write_rows(tmp_path / "wic/val.jsonl.gz", [record])
    write_rows(tmp_path / "wic/train.jsonl.gz", [record])
    prompt = (
        "Sentence 1: Two Heads.\nSentence 2: A head.\n"
        "Question: Is the word 'Heads' used in the same way in the two sentences above?\nAnswer:"
    )
    assert requests(our_task("wic", 0, tmp_path), 0) == [(prompt, " no"), (prompt, " yes")]


def test_race_rows_are_grouped_both_ways() -> None:
    records = [race_record("A", "1?"), race_record("B", "2?", "A"), race_record("A", "3?", "D")]
    questions = list(race_questions(records))
    assert [(row["article"], row["question"], row["answer"]) for row in questions] == [
        ("A", "1?", 1),
        ("B", "2?", 0),
        ("A", "3?", 3),
    ]
    articles = race_articles(records)
    assert [(row["article"], [problem["question"] for problem in row["problems"]]) for row in articles] == [
        ("A", ["1?", "3?"]),
        ("B", ["2?"]),
    ]
    grouped = [
        {
            "article": row["article"],
            "problems": repr([{**problem, "answer": "ABCD"[problem["answer"]]} for problem in row["problems"]]),
        }
        for row in articles
    ]
    assert race_articles(grouped) == articles
    assert sorted(map(repr, race_questions(grouped))) == sorted(map(repr, questions))


@pytest.mark.parametrize(("answer", "options"), [("E", "abcd"), ("", "abcd"), ("A", "abc")])
def test_race_rows_without_four_options_or_an_answer_are_refused(
    tmp_path: Path, answer: str, options: Sequence[str]
) -> None:
    write_rows(tmp_path / "race/test.jsonl.gz", [race_record("A", "1?", answer, options)])
    with pytest.raises(UserError, match="not race_h data"):
        open_task_data("race_h", str(tmp_path))["test"]


def test_race_prompts_of_both_forms(tmp_path: Path) -> None:
    records = [
        race_record("Text.", "Who?"),
        race_record("Text.", "It was  _  .", "A"),
        race_record("Text.", "Why  _  ."),
    ]
    write_rows(tmp_path / "race/test.jsonl.gz", records)
    alone = our_task("race_h", 0, tmp_path)
    prompts = [f"Article: Text.\n\nQuestion: {question}\nAnswer:" for question in ("Who?", "It was  _  .", "Why  _  .")]
    assert [requests(alone, document) for document in range(3)] == [
        [(prompt, f" {option}") for option in "abcd"] for prompt in prompts
    ]
    last = our_task("race_h_last", 0, tmp_path)
    prompt = "Article: Text.\n\nQuestion: Who?\nAnswer: b\nIt was a\nWhy  _  ."
    assert [requests(last, document) for document in range(len(last.eval_docs))] == [
        [(prompt, f" {option}") for option in "abcd"]
    ]


def test_race_examples_are_on_other_articles(tmp_path: Path) -> None:
    records = [race_record(f"article {i // 3}", f"question {i}?") for i in range(9)]
    write_rows(tmp_path / "race/test.jsonl.gz", records)
    for name in ("race_h", "race_h_last"):
        task = our_task(name, 2, tmp_path)
        assert task.dataset.examples_split == "test"
        for document in range(len(task.eval_docs)):
            article = task.eval_docs[document]["article"]
            context = requests(task, document, shots=2)[0][0]
            assert context.count("Article: ") == 3
            assert context.count(article) == 1
    with pytest.raises(UserError, match="7 shots of race_h need more than 6 questions on other articles"):
        requests(our_task("race_h", 7, tmp_path), 0, shots=7)


def test_race_examples_come_from_training_articles_where_there_are_any(tmp_path: Path) -> None:
    write_rows(tmp_path / "race/test.jsonl.gz", [race_record(f"test {i}", "q?") for i in range(4)])
    write_rows(tmp_path / "race/train.jsonl.gz", [race_record(f"train {i}", "q?") for i in range(4)])
    for name in ("race_h", "race_h_last"):
        task = our_task(name, 2, tmp_path)
        context = requests(task, 0, shots=2)[0][0]
        assert (context.count("Article: train"), context.count("Article: test")) == (2, 1)
        assert set(task.dataset.sources) == {"test", "train"}
