"""RACE's two forms: every question on its own, and lm-eval's, where an article's last question is scored."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.samplers import ContextSampler
from lm_eval.api.task import ConfigurableTask

from foundation.errors import UserError

# How a sentence to complete ends. In an article's earlier questions its answer takes the blank's place.
_BLANK = "  _  ."
# No article of RACE has as many questions.
_MOST_QUESTIONS = 20


def question_alone(row: Mapping[str, Any]) -> str:
    """The article and one question, in the form that lm-eval gives the earlier questions of an article."""
    return f"Article: {row['article']}\n\nQuestion: {row['question']}\nAnswer:"


def last_question(row: Mapping[str, Any]) -> str:
    """lm-eval's prompt (race, version 3.0): the article, its earlier questions with answers, the last without."""
    *earlier, last = row["problems"]
    return f"Article: {row['article']}\n\n" + "".join(map(_answered, earlier)) + str(last["question"])


def last_options(row: Mapping[str, Any]) -> list[str]:
    """The options of the article's last question."""
    options: list[str] = row["problems"][-1]["options"]
    return options


def last_answer(row: Mapping[str, Any]) -> int:
    """The right one's index."""
    return int(row["problems"][-1]["answer"])


class RaceTask(ConfigurableTask):  # type: ignore[misc]  # lm-eval ships no types
    """A task whose examples come from the training split where the data has one, else from the test split.

    The task file names the test split for both, so that lm-eval tells the sampler which question is asked.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    def fewshot_docs(self) -> Any:
        """Rows to draw examples from."""
        return self.dataset[self.dataset.examples_split]


class OtherArticles(ContextSampler):  # type: ignore[misc]
    """lm-eval's sampler without the questions on the article that is asked about."""

    def sample(
        self, n: int, eval_doc: Mapping[str, Any] | None = None, df: object = None, **_options: object
    ) -> Sequence[Mapping[str, Any]]:
        """`n` examples at random. Raises UserError when there are too few on other articles."""
        docs = self.fewshot_docs()
        drawn = self.rnd.sample(docs, min(n + _MOST_QUESTIONS, len(docs)))
        article = eval_doc["article"] if eval_doc else None
        chosen = [doc for doc in drawn if doc["article"] != article][:n]
        if len(chosen) < n:
            raise UserError(f"{n} shots of race_h need more than {len(chosen)} questions on other articles")
        return chosen


def _answered(problem: Mapping[str, Any]) -> str:
    question, answer = problem["question"], problem["options"][problem["answer"]]
    if question.endswith(_BLANK):
        return f"{question[:-5]}{answer}\n"
    return f"Question: {question}\nAnswer: {answer}\n"
