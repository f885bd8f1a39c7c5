"""The examples before a question: the same for every document, or drawn anew for each as GPT-3 did."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.samplers import ContextSampler

from foundation.errors import UserError

# Of the prompts that fit without examples, so many may be too long with them. One very long document would otherwise
# take the examples from all the others.
_MOST_TOO_LONG = 0.01


class FixedExamples(ContextSampler):  # type: ignore[misc]  # lm-eval ships no types
    """Examples in one shuffled order for all documents, so that prompts share them as their beginning.

    Fewer examples are the first of more. Where lm-eval says which document is asked (its examples come from the same
    split), that document, and those that share its `cluster`, are passed over.
    """

    def __init__(self, docs: Sequence[Mapping[str, Any]], seed: int, cluster: str | None) -> None:
        super().__init__(docs, rnd=seed)
        self._order = list(range(len(docs)))
        self.rnd.shuffle(self._order)
        self._cluster = cluster

    def sample(
        self, n: int, eval_doc: Mapping[str, Any] | None = None, df: object = None, **_options: object
    ) -> list[Mapping[str, Any]]:
        """The first `n` examples that are not the document itself."""
        chosen: list[Mapping[str, Any]] = []
        for index in self._order:
            if len(chosen) == n:
                break
            if eval_doc is None or not self._related(self.df[index], eval_doc):
                chosen.append(self.df[index])
        return chosen

    def set_rnd(self, rnd: int | None) -> "FixedExamples":
        """lm-eval sets its own seed before it runs; the order here was drawn already."""
        return self

    def _related(self, example: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
        if self._cluster is not None and example[self._cluster] == document[self._cluster]:
            return True
        return example == document


class DrawnExamples(ContextSampler):  # type: ignore[misc]
    """lm-eval's own sampler, which draws for each document anew, with documents of the same `cluster` passed over."""

    def __init__(self, docs: Sequence[Mapping[str, Any]], seed: int, cluster: str | None) -> None:
        super().__init__(docs, rnd=seed)
        self._cluster = cluster
        sizes = Counter(row[cluster] for row in docs) if cluster is not None else Counter()
        self._largest_cluster = max(sizes.values(), default=0)

    def sample(
        self, n: int, eval_doc: Mapping[str, Any] | None = None, df: object = None, **_options: object
    ) -> list[Mapping[str, Any]]:
        """`n` examples at random. Raises UserError where there are not so many."""
        if eval_doc is None or self._cluster is None:
            return list(super().sample(n, eval_doc))
        # Enough that `n` are left when all of one cluster are passed over.
        drawn = self.rnd.sample(self.df, min(len(self.df), n + self._largest_cluster))
        chosen = [row for row in drawn if row[self._cluster] != eval_doc[self._cluster]]
        if len(chosen) < n:
            raise UserError(f"{n} examples of another {self._cluster} were asked for; there are {len(chosen)}")
        return chosen[:n]


def set_examples(task: Any, shots: int, seed: int, *, fixed: bool) -> None:
    """Put `shots` examples before each question of an lm-eval task."""
    task.set_config(key="num_fewshot", value=shots)
    sampler = FixedExamples if fixed else DrawnExamples
    cluster = (task.config.metadata or {}).get("cluster")
    task.sampler = sampler(list(task.fewshot_docs()), random.Random(seed).randrange(2**32), cluster)


def fitting_examples(task: Any, tokenizer: Any, max_length: int, documents: int) -> int:
    """As many of the task's examples as nearly all prompts have room for in `max_length` tokens.

    GPT-3's number of examples is what fits in 2048 tokens (Brown et al. 2020, section 2.4), so a shorter context gets
    fewer, and whole ones. Of the documents that fit without examples at most 1 % may be too long with them; those lose
    their beginning.
    """
    asked = task.config.num_fewshot
    docs = [doc for _, doc in zip(range(documents), task.eval_docs, strict=False)]
    lengths = sorted(_longest_request(task, doc, tokenizer) for doc in docs)
    lengths = [length for length in lengths if length <= max_length] or lengths[:1]
    room = max_length - lengths[-1 - int(_MOST_TOO_LONG * len(lengths))]
    bare = _tokens(tokenizer, _prompt(task, docs[0], 0))
    fitting = 0
    for count in range(1, asked + 1):
        if _tokens(tokenizer, _prompt(task, docs[0], count)) - bare > room:
            break
        fitting = count
    return fitting


def _longest_request(task: Any, doc: Any, tokenizer: Any) -> int:
    """Tokens that go through the model for the longest answer: the last is only predicted."""
    context = task.fewshot_context(doc, num_fewshot=0)
    requests = task.construct_requests(doc=doc, ctx=context, metadata=(None, 0, 1))
    requests = requests if isinstance(requests, list) else [requests]
    return max(_tokens(tokenizer, "".join(request.args)) for request in requests) - 1


def _prompt(task: Any, doc: Any, shots: int) -> str:
    context = task.fewshot_context(doc, num_fewshot=shots)
    return context if isinstance(context, str) else str(context[0])


def _tokens(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text))
