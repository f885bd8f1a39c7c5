"""The waterfall: documents, text and tokens of every dataset through the stages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from training.corpus.report.folder import StageFolder

# How stages name the counts of what a rule dropped.
_RULE = "rule: "


@dataclass(frozen=True)
class Amount:
    """What a dataset holds behind a stage. `tokens` are estimated but behind the last; None where nothing tells."""

    documents: int
    bytes: int
    tokens: float | None = None


@dataclass(frozen=True)
class Step:
    """A stage: what is left of each dataset, what each rule took, and how long it worked (None: not known)."""

    stage: str
    amounts: Mapping[str, Amount]
    rules: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # rule, dataset, documents
    seconds: float | None = None

    @property
    def total(self) -> Amount:
        """All datasets together."""
        tokens = [amount.tokens for amount in self.amounts.values() if amount.tokens is not None]
        documents, size = (sum(getattr(one, name) for one in self.amounts.values()) for name in ("documents", "bytes"))
        return Amount(documents, size, sum(tokens) if tokens else None)


@dataclass(frozen=True)
class Bar:
    """A part of a waterfall's row, in % of its width; `dataset` is its place in the order, or None: taken out."""

    dataset: int | None
    start: float
    width: float
    title: str


@dataclass(frozen=True)
class Row:
    """A stage in a waterfall; `change` is what it took, in % of what came in, None for the first."""

    stage: str
    value: float
    change: float | None
    bars: tuple[Bar, ...]


def steps(stages: Sequence[StageFolder], datasets: Sequence[str], tokens: Mapping[str, int]) -> list[Step]:
    """`tokens` by dataset are those written in the end; earlier ones are estimated by the dataset's bytes a token."""
    found = [_step(stage, datasets) for stage in stages]
    ratios = _tokens_a_byte(found[-1], tokens)
    return [_with_tokens(step, ratios) for step in found]


def waterfall(steps: Sequence[Step], measure: str, unit: str) -> list[Row]:
    """The picture of one of an Amount's measures; stages of which it is not known are left out."""
    known = [step for step in steps if getattr(step.total, measure) is not None]
    widest = max((getattr(step.total, measure) for step in known), default=0) or 1
    rows: list[Row] = []
    for step in known:
        value = float(getattr(step.total, measure))
        before = rows[-1].value if rows else None
        bars = _bars(step, measure, widest, unit)
        if before is not None and before > value:
            width = 100 * (before - value) / widest
            bars.append(Bar(None, 100 * value / widest, width, f"{step.stage}: {before - value:,.0f} {unit} taken out"))
        change = None if before is None else 100 * (value - before) / (before or 1)
        rows.append(Row(step.stage, value, change, tuple(bars)))
    return rows


def _bars(step: Step, measure: str, widest: float, unit: str) -> list[Bar]:
    bars, start = [], 0.0
    for place, (dataset, amount) in enumerate(step.amounts.items()):
        value = getattr(amount, measure) or 0
        bars.append(Bar(place, start, 100 * value / widest, f"{step.stage}, {dataset}: {value:,.0f} {unit}"))
        start += bars[-1].width
    return bars


def _step(stage: StageFolder, datasets: Sequence[str]) -> Step:
    amounts: dict[str, Amount] = {}
    rules: dict[str, dict[str, int]] = {}
    for dataset in datasets:
        counts = stage.counts(dataset)
        amounts[dataset] = Amount(int(counts.get("documents_out", 0)), int(counts.get("bytes_out", 0)))
        for name, count in counts.get("counts", {}).items():
            if name.startswith(_RULE):
                rules.setdefault(name.removeprefix(_RULE), {})[dataset] = int(count)
    return Step(stage.name, amounts, dict(sorted(rules.items())), stage.read("times.json").get("seconds"))


def _tokens_a_byte(last: Step, tokens: Mapping[str, int]) -> dict[str, float]:
    """By dataset; one of which nothing is left has the others' mean."""
    sizes = {dataset: amount.bytes for dataset, amount in last.amounts.items()}
    if not sum(sizes[dataset] for dataset in tokens if dataset in sizes):
        return {}
    mean = sum(tokens.values()) / sum(sizes[dataset] for dataset in tokens if dataset in sizes)
    return {
        dataset: tokens[dataset] / size if size and tokens.get(dataset) else mean for dataset, size in sizes.items()
    }


def _with_tokens(step: Step, ratios: Mapping[str, float]) -> Step:
    amounts = {
        dataset: Amount(amount.documents, amount.bytes, _estimate(step, amount, ratios.get(dataset)))
        for dataset, amount in step.amounts.items()
    }
    return Step(step.stage, amounts, step.rules, step.seconds)


def _estimate(step: Step, amount: Amount, ratio: float | None) -> float | None:
    # A raw page's bytes are markup, which would count as text.
    if ratio is None or step.stage == "sources":
        return None
    return amount.bytes * ratio
