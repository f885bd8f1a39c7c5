"""Examples: one order for all documents, nothing of the question itself, as many as fit."""

from typing import Any

import pytest

from foundation.errors import UserError

ROWS = [{"text": f"row {number}", "group": number // 3} for number in range(30)]


def fixed(seed: int = 5, cluster: str | None = None) -> Any:
    from evaluation.few_shot import FixedExamples

    return FixedExamples(ROWS, seed, cluster)


def test_every_document_gets_the_same_examples_and_fewer_are_the_first_of_more() -> None:
    sampler = fixed()
    five = sampler.sample(5)
    assert sampler.sample(5) == fixed().sample(5) == five
    assert sampler.sample(3) == five[:3]
    assert sampler.set_rnd(99).sample(5) == five
    assert fixed(seed=6).sample(5) != five
    assert len({row["text"] for row in sampler.sample(30)}) == 30


def test_document_is_not_its_own_example() -> None:
    sampler = fixed()
    first, *rest = sampler.sample(6)
    assert sampler.sample(5, eval_doc=first) == rest
    assert sampler.sample(5, eval_doc=rest[-1]) == [first, *rest[:-1]]


@pytest.mark.parametrize("kind", ["FixedExamples", "DrawnExamples"])
def test_documents_of_the_same_cluster_are_passed_over(kind: str) -> None:
    from evaluation import few_shot

    sampler = getattr(few_shot, kind)(ROWS, 5, "group")
    for document in ROWS:
        assert all(example["group"] != document["group"] for example in sampler.sample(20, eval_doc=document))


def test_more_drawn_examples_than_there_are_is_an_error() -> None:
    from evaluation.few_shot import DrawnExamples

    sampler = DrawnExamples(ROWS, 5, "group")
    assert len({row["text"] for row in sampler.sample(27, eval_doc=ROWS[0])}) == 27
    with pytest.raises(UserError, match="28 examples of another group were asked for; there are 27"):
        sampler.sample(28, eval_doc=ROWS[0])


def test_drawn_examples_differ_between_documents() -> None:
    from evaluation.few_shot import DrawnExamples

    sampler = DrawnExamples(ROWS, 5, None)
    drawn = [[row["text"] for row in sampler.sample(4, eval_doc=document)] for document in ROWS[:5]]
    assert len({tuple(texts) for texts in drawn}) == 5


class WordTask:
    """Prompts of words; a token is a word."""

    def __init__(self, shots: int, documents: list[int], example: int) -> None:
        self.config = type("Config", (), {"num_fewshot": shots})
        self.eval_docs = documents
        self._example = example

    def fewshot_context(self, doc: int, num_fewshot: int) -> str:
        return "x " * (num_fewshot * self._example + doc)

    def construct_requests(self, doc: int, ctx: str, metadata: object) -> list[Any]:
        return [type("Request", (), {"args": (ctx, answer)}) for answer in ("y", "y y")]


class WordTokenizer:
    def encode(self, text: str) -> list[str]:
        return text.split()


@pytest.mark.parametrize(
    ("documents", "room", "expected"),
    [
        ([10, 20], 61, 4),  # 20 + 2 answer tokens, the last only predicted: 21, and 4 x 10 examples
        ([10, 20], 60, 3),
        ([10, 20], 1000, 6),
        ([10, 20], 21, 0),
        ([10] * 99 + [900], 51, 4),  # too long at any rate
        ([10] * 150 + [40], 51, 4),  # one in a hundred may be cut
        ([10] * 50 + [40], 51, 1),
    ],
)
def test_as_many_examples_as_fit(documents: list[int], room: int, expected: int) -> None:
    from evaluation.few_shot import fitting_examples

    task = WordTask(6, documents, example=10)
    assert fitting_examples(task, WordTokenizer(), room, len(documents)) == expected
