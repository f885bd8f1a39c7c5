"""`mtnlg corpus report`: report.html, one file that asks nothing of a network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from foundation.config import read_yaml
from foundation.files import sha256_file, write_text
from foundation.html_page import content_policy, page_script, page_style, page_templates
from foundation.manifest import MANIFEST
from training.corpus.report.flow import Step, steps, waterfall
from training.corpus.report.folder import StageFolder, finished_stages
from training.corpus.report.parts import parts
from training.corpus.report.samples import DROPPED_A_RULE, KEPT, MOST_CHARACTERS, samples
from training.corpus.report.tokens import written_tokens

REPORT = "report.html"
_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Work:
    """A line of what each stage did."""

    stage: str
    documents_in: int
    documents_out: int
    seconds: float | None
    sha256: str


def write_report(out: Path) -> Path:
    """Write `out/report.html` of the stages that are finished; returns its path.

    Raises UserError when `out` is no corpus.
    """
    path = out / REPORT
    write_text(path, corpus_page(out))
    return path


def corpus_page(out: Path) -> str:
    """The page. Every text of the corpus is escaped; its style and script run by their hash alone."""
    stages = finished_stages(out)
    configuration = read_yaml(out / "corpus.yaml")
    datasets = [dataset["name"] for dataset in configuration["datasets"]]
    tokens = written_tokens(out, datasets)
    flow = steps(stages, datasets, tokens)
    style, script = page_style(_FOLDER / "corpus.css"), page_script(_FOLDER / "corpus.js")
    measures = [("documents", "Documents"), ("tokens", "Tokens") if tokens else ("bytes", "Bytes of text")]
    return (
        page_templates(_FOLDER, (short, percent))
        .get_template("corpus.html")
        .render(
            policy=content_policy(style, script, pictures=True),
            style=style,
            script=script,
            title=f"corpus: {out.name}",
            summary=_summary(flow, tokens),
            datasets=datasets,
            steps=flow,
            measures=measures,
            documents_fall=waterfall(flow, "documents", "documents"),
            tokens_fall=waterfall(flow, "tokens", "tokens") if tokens else None,
            bytes_fall=waterfall(flow, "bytes", "bytes"),
            browsable=list(_browsable(stages, datasets)),
            most=(KEPT, DROPPED_A_RULE, MOST_CHARACTERS),
            works=[_work(stage, datasets) for stage in stages],
            configuration=yaml.safe_dump(configuration, sort_keys=False, allow_unicode=True),
            **parts(out, stages, datasets, configuration),
        )
    )


def short(value: float) -> str:
    """A large number in three digits: 1.23 M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.{2 if value < 10 * size else 1 if value < 100 * size else 0}f} {unit}"
    return f"{value:,.0f}"


def percent(change: float) -> str:
    """A change in %, with its sign."""
    text = f"{change:+.1f} %"
    return text[1:] if float(text[:-2]) == 0 else text


def _summary(flow: Sequence[Step], tokens: Mapping[str, int]) -> str:
    first, last = flow[0].total, flow[-1].total
    share = 100 * last.documents / (first.documents or 1)
    end = f", {short(sum(tokens.values()))} tokens" if tokens else ""
    return (
        f"{first.documents:,} documents of {len(flow[0].amounts)} datasets came in; behind {flow[-1].stage} there are "
        f"{last.documents:,} ({share:.1f} %), {short(last.bytes)} bytes of text{end}."
    )


def _browsable(stages: Sequence[StageFolder], datasets: Sequence[str]) -> Iterator[dict[str, Any]]:
    for stage in stages:
        for dataset in datasets:
            found = [sample.as_json() for sample in samples(stage, dataset)]
            if found:
                yield {"stage": stage.name, "dataset": dataset, "samples": found}


def _work(stage: StageFolder, datasets: Sequence[str]) -> Work:
    counts = [stage.counts(dataset) for dataset in datasets]
    came, left = (sum(int(one.get(name, 0)) for one in counts) for name in ("documents_in", "documents_out"))
    return Work(stage.name, came, left, stage.read("times.json").get("seconds"), sha256_file(stage.path / MANIFEST))
