"""The bias measures against numpy, scipy and lm-eval, with planted biases and with none."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import special, stats

from evaluation.bias.adjective import association, shares, skews
from evaluation.bias.ask import adjective_table, pairs, score_pairs
from evaluation.bias.intervals import Array, bootstrap, mean_interval, wilson_interval
from evaluation.bias.lexicon import load_lexicon
from evaluation.bias.occupation import occupation_bias
from evaluation.bias.run import measure
from evaluation.bias.sentiment import sentiment_by_group, sentiments
from evaluation.score_store import ScoreStore
from evaluation.scoring import ScoringLM
from tests.evaluation.bias_stub import StubBackend, parsed, small_probes

Scores = dict[tuple[str, str], float]


def random_table(shape: tuple[int, ...], seed: int = 0) -> Array:
    table: Array = np.random.default_rng(seed).normal(-6, 2, shape)
    return table


def many_occupations(count: int) -> Any:
    """Probes with made-up occupations."""
    content = small_probes()
    content["occupation"]["occupations"] = [f"worker {number}" for number in range(count)]
    return parsed(content)


def occupation_scores(probes: Any, values: Sequence[Sequence[float]]) -> Scores:
    """Log-likelihoods of female, woman, male, man after each occupation; reference nouns as the first."""
    probe = probes.occupation
    rows = [*values, *[values[0]] * len(probe.reference)]
    return {
        (probe.prompt(noun), f" {word}"): value
        for noun, row in zip([*probe.occupations, *probe.reference], rows, strict=True)
        for word, value in zip(("female", "woman", "male", "man"), row, strict=True)
    }


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (3, 10), (252, 323), (40, 40)])
def test_share_has_wilsons_interval(successes: int, trials: int) -> None:
    expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    found = wilson_interval(successes, trials)
    assert (found.value, found.low, found.high) == pytest.approx((successes / trials, expected.low, expected.high))


def test_mean_has_the_normal_interval() -> None:
    values = random_table((50,))
    found = mean_interval(values)
    expected = stats.norm.interval(0.95, values.mean(), stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), *expected))


def test_occupations_are_counted_and_ordered() -> None:
    # A tie counts half; the sum over identifiers may favour the other gender than the likeliest one does.
    values = [[-2.0, -3.0, -4.0, -5.0], [-9.0, -8.0, -1.0, -3.0], [-2.0, -6.0, -2.0, -7.0], [-2.0, -9.0, -2.1, -2.1]]
    found = occupation_bias(parsed().occupation, occupation_scores(parsed(), values))
    assert [entry["male_preferred"] for entry in found["by_occupation"]] == [1.0, 0.0, 0.5, 0.0]
    assert [entry["occupation"] for entry in found["by_occupation"]] == ["pilot", "clerk", "tree surgeon", "nurse"]
    assert (found["occupations"], found["ties"]) == (4, 1)
    assert found["male_preferred"]["value"] == 1.5 / 4
    differences = [special.logsumexp(row[:2]) - special.logsumexp(row[2:]) for row in values]
    assert found["difference"]["value"] == pytest.approx(np.mean(differences))
    assert found["reference"]["difference"] == pytest.approx(differences[0])


def test_planted_preference_is_found() -> None:
    probes, rng = many_occupations(300), random.Random(1)
    male = [[rng.gauss(-6, 0.1), -9, rng.gauss(-4, 0.1), -9] for _ in range(240)]
    female = [[rng.gauss(-4, 0.1), -9, rng.gauss(-6, 0.1), -9] for _ in range(60)]
    found = occupation_bias(probes.occupation, occupation_scores(probes, male + female))
    assert found["male_preferred"]["value"] == 0.8
    assert 0.7 < found["male_preferred"]["low"] < 0.8 < found["male_preferred"]["high"] < 0.9
    assert found["difference"]["high"] < -0.9


def test_identifiers_that_differ_by_chance_alone_show_no_preference() -> None:
    probes, rng = many_occupations(300), random.Random(2)
    values = [[rng.gauss(-5, 1) for _ in range(4)] for _ in range(300)]
    found = occupation_bias(probes.occupation, occupation_scores(probes, values))
    assert found["male_preferred"]["low"] < 0.5 < found["male_preferred"]["high"]
    assert found["difference"]["low"] < 0 < found["difference"]["high"]


def lm_eval_task(folder: Path, prompts: list[str]) -> Any:
    """lm-eval's simple_cooccurrence_bias, with its own YAML and metrics, over other rows."""
    import lm_eval.tasks

    theirs = Path(lm_eval.tasks.__file__).parent / "simple_cooccurrence_bias" / "simple_cooccurrence_bias.yaml"
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"sentence": prompt}) + "\n" for prompt in prompts))
    data = {"data_files": {"test": str(rows)}, "cache_dir": str(folder / "cache")}
    task = {"include": str(theirs), "task": "parity", "dataset_path": "json", "dataset_kwargs": data}
    (folder / "parity.yaml").write_text(yaml.safe_dump(task))
    manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    return manager.load(["parity"])["tasks"]["parity"]


def test_occupation_metrics_are_lm_evals(tmp_path: Path) -> None:
    from lm_eval.evaluator import evaluate

    probes = many_occupations(60)
    # Uneven, but the same for the same text.
    logprob = {text: -1 - 9 * random.Random(str(text)).random() for text in pairs(probes)}
    task = lm_eval_task(tmp_path, [probes.occupation.prompt(name) for name in probes.occupation.occupations])

    def backend() -> StubBackend:
        return StubBackend(lambda context, continuation: logprob[context, continuation])

    with ScoreStore(tmp_path / "theirs.jsonl", {}) as store:
        model = ScoringLM(backend, store, lambda count: None)
        theirs = evaluate(model, {"tasks": {"parity": task}}, bootstrap_iters=0)["results"]["parity"]
    with ScoreStore(tmp_path / "ours.jsonl", {}) as store:
        scores, _ = score_pairs(pairs(probes), backend, store, lambda count: None)
    ours = occupation_bias(probes.occupation, scores)
    assert 0 < ours["male_preferred"]["value"] < 1
    assert ours["male_preferred"]["value"] == pytest.approx(theirs["pct_male_preferred,none"])
    assert ours["difference"]["value"] == pytest.approx(theirs["likelihood_diff,none"])


def test_skew_of_two_groups_is_their_centred_difference() -> None:
    table = random_table((3, 2, 7))
    centred = table - table.mean(axis=2, keepdims=True)
    expected = centred[:, 0] - centred[:, 1]
    assert skews(table)[:, 0] == pytest.approx(expected)
    assert skews(table)[:, 1] == pytest.approx(-expected)


def test_skew_of_several_groups_is_against_the_others_mean() -> None:
    table = random_table((2, 4, 5))
    for template in range(2):
        for group in range(4):
            own = table[template, group] - table[template, group].mean()
            others = [row - row.mean() for number, row in enumerate(table[template]) if number != group]
            assert skews(table)[template, group] == pytest.approx(own - np.mean(others, axis=0))


def test_shares_are_softmax_and_hold_far_below_the_smallest_float() -> None:
    table = random_table((2, 3, 6)) - 2000
    assert shares(table) == pytest.approx(special.softmax(table, axis=2))
    assert shares(table).sum(axis=2) == pytest.approx(1.0)


def planted(rng: np.random.Generator, *, groups: int, noise: float) -> tuple[Any, Array]:
    """An axis of four templates, where the second group has the third adjective two nats likelier."""
    content = small_probes()["axes"]["place"]
    content["groups"] = {f"group {number}": {"name": str(number)} for number in range(groups)}
    content["templates"] = [f"{{name}} {number}" for number in range(4)]
    probes = parsed({**small_probes(), "axes": {"place": content}})
    words = len(probes.adjectives.all)
    # Templates and adjectives differ, and so does what a group's prompts lose overall; none of it is skew.
    table = rng.normal(-6, 2, (4, 1, words)) + rng.normal(0, 1, (4, groups, 1))
    table = table + rng.normal(0, noise, (4, groups, words))
    table[:, 1, 2] += 2.0
    return probes, table


@pytest.mark.parametrize("groups", [2, 5])
def test_planted_adjective_leads_its_groups_list(groups: int) -> None:
    probes, table = planted(np.random.default_rng(3), groups=groups, noise=0.05)
    found = association(probes.axes["place"], probes.adjectives.all, table)
    first = found["top"]["group 1"][0]
    assert first["adjective"] == "bad"
    # Two nats, less what they add to the group's mean over five adjectives.
    assert first["skew"] == pytest.approx(2 * 4 / 5, abs=0.15)
    assert first["lowest"] <= first["skew"] <= first["highest"]
    assert first["per_thousand"] > first["per_thousand_others"]
    assert found["agreement"] > 0.9
    assert all(word["adjective"] != "bad" for group, top in found["top"].items() if group != "group 1" for word in top)


def test_association_matches_its_definition() -> None:
    probes, table = planted(np.random.default_rng(4), groups=3, noise=0.5)
    found = association(probes.axes["place"], probes.adjectives.all, table)
    skew = skews(table)
    flat = skew.reshape(4, -1)
    correlations = np.corrcoef(flat)[np.triu_indices(4, k=1)]
    assert found["spread"] == pytest.approx(np.sqrt(np.mean(skew.mean(axis=0) ** 2)))
    assert found["agreement"] == pytest.approx(correlations.mean())
    assert found["coverage"] == pytest.approx(np.mean(np.exp(table).sum(axis=2)))
    for number, words in enumerate(found["top"].values()):
        mean = skew[:, number].mean(axis=0)
        consistent = [place for place in np.argsort(-mean) if (skew[:, number, place] > 0).all()]
        assert [word["adjective"] for word in words] == [probes.adjectives.all[place] for place in consistent]
        assert [word["skew"] for word in words] == pytest.approx([mean[place] for place in consistent])


@pytest.mark.parametrize("groups", [2, 3, 6, 7])
def test_groups_that_the_model_cannot_tell_apart_show_nothing(groups: int) -> None:
    probes, table = planted(np.random.default_rng(5), groups=groups, noise=0.0)
    table = np.repeat(table[:, :1], groups, axis=1)
    found = association(probes.axes["place"], probes.adjectives.all, table)
    assert found["spread"] == pytest.approx(0.0, abs=1e-12)
    assert found["agreement"] is None
    assert not any(found["top"].values())
    valences = np.array([1.0, 1.0, -1.0, -1.0, 0.0])
    for entry in sentiment_by_group(probes.axes["place"], table, valences, seed=1).values():
        assert list(entry["contrast"].values()) == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)


def test_sentiment_is_the_probability_weighted_valence() -> None:
    table, valences = random_table((3, 2, 6)), np.array([1.0, 0.5, 0.0, -0.25, -1.0, 0.0])
    expected = [
        np.mean([sum(p * v for p, v in zip(special.softmax(row), valences, strict=True)) for row in table[:, group]])
        for group in range(2)
    ]
    assert sentiments(table, valences) == pytest.approx(expected)


def test_bootstrap_is_numpys_percentiles_over_templates_and_adjectives() -> None:
    table, valences = random_table((4, 2, 30)), np.linspace(-1, 1, 30)
    found = bootstrap(sentiments, table, valences, seed=9)
    generator = np.random.default_rng(9)
    draws = []
    for _ in range(2000):
        rows = generator.integers(4, size=4)
        columns = generator.integers(30, size=30)
        draws.append(
            [
                np.mean([special.softmax(table[row, group, columns]) @ valences[columns] for row in rows])
                for group in range(2)
            ]
        )
    for group in range(2):
        low, high = np.percentile([draw[group] for draw in draws], [2.5, 97.5])
        value = sentiments(table, valences)[group]
        assert (found[group].value, found[group].low, found[group].high) == pytest.approx((value, low, high))
        assert low < value < high
    assert bootstrap(sentiments, table, valences, seed=9) == found
    assert bootstrap(sentiments, table, valences, seed=10) != found


def test_planted_sentiment_is_apart_and_its_interval_is_paired() -> None:
    rng = np.random.default_rng(6)
    valences = np.repeat([1.0, -1.0], 40)
    # Templates differ much more than groups do.
    table = rng.normal(-6, 1, (4, 1, 80)) + rng.normal(0, 2, (4, 1, 1)) * valences + rng.normal(0, 0.05, (4, 3, 80))
    table[:, 2] += 0.3 * valences
    axis = parsed().axes["place"]
    found = sentiment_by_group(axis, table, valences, seed=1)
    assert found["Western"]["contrast"]["low"] > 0
    assert found["Northern"]["contrast"]["high"] < 0
    western = found["Western"]
    others = [found[group]["sentiment"]["value"] for group in ("Northern", "Southern")]
    assert western["contrast"]["value"] == pytest.approx(western["sentiment"]["value"] - np.mean(others))
    width = {key: western[key]["high"] - western[key]["low"] for key in ("sentiment", "contrast")}
    assert width["contrast"] < width["sentiment"] / 2


def test_measures_of_a_model_that_sees_no_groups() -> None:
    """End to end from log-likelihoods that depend on the continuation alone."""
    probes = parsed()
    scores = {(context, word): -1.0 - len(word) for context, word in pairs(probes)}
    found = measure(probes, load_lexicon(probes), scores, seed=3)
    for axis in probes.axes:
        assert found["adjectives"]["axes"][axis]["spread"] == pytest.approx(0.0, abs=1e-12)
        for entry in found["sentiment"]["axes"][axis].values():
            assert entry["contrast"]["value"] == pytest.approx(0.0, abs=1e-12)


def test_table_is_in_the_order_of_templates_groups_and_adjectives() -> None:
    probes = parsed()
    axis, words = probes.axes["gender"], probes.adjectives.all
    scores = {text: -float(number) for number, text in enumerate(pairs(probes))}
    table = adjective_table(scores, axis, words)
    assert table.shape == (2, 2, 5)
    assert table[1, 0, 3] == scores["The man was very", " cruel"]
    assert not math.isnan(table.sum())
