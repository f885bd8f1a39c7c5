"""Intervals and paired tests against scipy, published examples, and simulation."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from evaluation.statistics import PairedDifference, accuracy_interval, detectable_drop, holm, paired_difference

# Scores and clusters for which statsmodels 0.15.0's
# OLS(scores, ones).fit(cov_type="cluster", cov_kwds={"groups": clusters}) has this standard error.
SCORES = [1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 1]
CLUSTERS = [0] * 4 + [1] * 3 + [2] * 4 + [3] + [4] * 6
CLUSTERED_STDERR = 0.15585656

score_lists = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=60)
documents = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from([0, 1]), st.integers(0, 5)), min_size=1, max_size=60
)


def pairs(both: int, lost: int, gained: int, neither: int) -> tuple[list[int], list[int]]:
    """Scores of two runs with these counts."""
    first = [1] * (both + lost) + [0] * (gained + neither)
    second = [1] * both + [0] * lost + [1] * gained + [0] * neither
    return first, second


# Intervals of one accuracy.


@pytest.mark.parametrize(("right", "count"), [(0, 10), (7, 10), (41, 100), (50, 50), (1, 1), (6211, 10042)])
def test_wilson_interval_is_scipys(right: int, count: int) -> None:
    found = accuracy_interval([1] * right + [0] * (count - right))
    expected = scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert (found.value, found.documents, found.clusters) == (right / count, count, count)


def test_standard_error_of_independent_documents_is_that_of_a_mean() -> None:
    assert accuracy_interval(SCORES).stderr == pytest.approx(scipy.stats.sem(SCORES), rel=1e-12)


def test_standard_error_of_clustered_documents_is_statsmodels() -> None:
    found = accuracy_interval(SCORES, CLUSTERS)
    assert found.stderr == pytest.approx(CLUSTERED_STDERR, abs=1e-8)
    assert (found.documents, found.clusters) == (18, 5)
    # Wilson's with the documents that independent ones of this standard error would take, and Student's quantile.
    mean, effective = found.value, found.value * (1 - found.value) / CLUSTERED_STDERR**2
    quantile = scipy.stats.t.ppf(0.975, 4)
    for bound in (found.low, found.high):
        assert abs(mean - bound) == pytest.approx(quantile * math.sqrt(bound * (1 - bound) / effective), rel=1e-6)


def test_millers_clustered_standard_error_up_to_its_missing_correction() -> None:
    """Miller 2024: the independent variance plus the covariances of every pair of documents within a cluster."""
    values = np.array(SCORES) - np.mean(SCORES)
    together = [values[i] * values[j] for i, j in itertools.permutations(range(18), 2) if CLUSTERS[i] == CLUSTERS[j]]
    miller = (float(values @ values) + sum(together)) / 18**2
    assert accuracy_interval(SCORES, CLUSTERS).stderr ** 2 == pytest.approx(miller * 5 / 4, rel=1e-12)


def test_a_cluster_a_document_has_the_independent_standard_error() -> None:
    assert accuracy_interval(SCORES, range(18)).stderr == pytest.approx(accuracy_interval(SCORES).stderr)


def test_all_right_is_not_certain() -> None:
    found = accuracy_interval([1] * 30)
    assert found.high == 1 and found.low == pytest.approx(1 / (1 + 1.959964**2 / 30), abs=1e-6)
    # Six articles of five questions say no more than six documents might.
    clustered = accuracy_interval([1] * 30, [i // 5 for i in range(30)])
    assert clustered.stderr == 0 and clustered.high == 1
    assert clustered.low == pytest.approx(1 / (1 + scipy.stats.t.ppf(0.975, 5) ** 2 / 6), abs=1e-6)


def test_one_document_and_one_cluster_have_the_widest_error() -> None:
    one = accuracy_interval([1])
    assert (one.value, one.stderr, one.high) == (1, 0.5, 1) and 0.2 < one.low < 0.21
    cluster = accuracy_interval([1, 0, 1], ["article"] * 3)
    assert (cluster.stderr, cluster.low, cluster.high, cluster.clusters) == (0.5, 0, 1, 1)


def test_clusters_that_are_all_alike_count_as_documents() -> None:
    found = accuracy_interval([1, 0] * 20, [i // 2 for i in range(40)])
    assert found.stderr == 0 and found.low < 0.35 and found.high > 0.65


def test_clusters_never_count_as_more_than_their_documents() -> None:
    scores, clusters = [1, 0] * 20 + [1, 1], [i // 2 for i in range(42)]
    found, quantile = accuracy_interval(scores, clusters), scipy.stats.t.ppf(0.975, 20)
    assert found.stderr < accuracy_interval(scores).stderr / 3
    half = quantile * math.sqrt(found.low * (1 - found.low) / 42)
    assert found.value - found.low == pytest.approx(half, rel=1e-9)


@pytest.mark.parametrize(
    ("scores", "clusters", "message"),
    [([], None, "no scores"), ([0.5], None, "neither 0 nor 1"), ([1, 0], ["a"], "2 scores but 1 clusters")],
)
def test_scores_that_are_none(scores: list[float], clusters: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accuracy_interval(scores, clusters)


@given(documents)
def test_interval_holds_the_value_and_mirrors(rows: list[tuple[int, int, int]]) -> None:
    scores, clusters = [row[0] for row in rows], [row[2] for row in rows]
    for by in (None, clusters):
        found = accuracy_interval(scores, by)
        assert 0 <= found.low <= found.value <= found.high <= 1 and found.low < found.high
        mirrored = accuracy_interval([1 - score for score in scores], by)
        assert (mirrored.low, mirrored.high) == pytest.approx((1 - found.high, 1 - found.low), abs=1e-9)
        assert mirrored.stderr == pytest.approx(found.stderr, abs=1e-12)


def _clustered(
    rng: np.random.Generator, groups: int, size: int, mean: float, alike: float
) -> tuple[list[int], list[int]]:
    """Scores whose clusters' chances are Beta distributed: correlation `alike` within a cluster."""
    total = 1 / alike - 1
    chances = rng.beta(mean * total, (1 - mean) * total, groups).repeat(size)
    return (rng.random(groups * size) < chances).astype(int).tolist(), np.arange(groups).repeat(size).tolist()


@pytest.mark.parametrize(("mean", "count"), [(0.5, 50), (0.8, 200), (0.97, 100), (0.25, 1000)])
def test_coverage_of_independent_documents(mean: float, count: int) -> None:
    rng = np.random.default_rng(7)
    found = [accuracy_interval((rng.random(count) < mean).astype(int).tolist()) for _ in range(2000)]
    assert 0.93 < np.mean([one.low <= mean <= one.high for one in found]) < 0.975


@pytest.mark.parametrize(("mean", "groups", "size"), [(0.5, 30, 20), (0.7, 100, 4), (0.85, 60, 10)])
def test_coverage_of_clustered_documents_where_the_independent_interval_fails(
    mean: float, groups: int, size: int
) -> None:
    rng = np.random.default_rng(11)
    drawn = [_clustered(rng, groups, size, mean, alike=0.4) for _ in range(1500)]
    clustered = [accuracy_interval(scores, clusters) for scores, clusters in drawn]
    naive = [accuracy_interval(scores) for scores, _ in drawn]
    assert 0.93 < np.mean([one.low <= mean <= one.high for one in clustered]) < 0.975
    assert np.mean([one.low <= mean <= one.high for one in naive]) < 0.88


# Two runs on the same documents.


def test_mcnemars_mid_p_of_a_published_example() -> None:
    """Fagerland, Lydersen and Laake 2013 and 2014: airway hyper-responsiveness before and after a transplantation."""
    found = paired_difference(*pairs(both=1, lost=1, gained=7, neither=12))
    assert found.p_value == pytest.approx(0.0391, abs=5e-5)
    assert (found.low, found.high) == pytest.approx((0.013, 0.508), abs=1e-3)
    assert (found.value, found.gained, found.lost) == (pytest.approx(6 / 21), 7, 1)


@pytest.mark.parametrize(("lost", "gained"), [(1, 7), (86, 150), (3, 3), (21, 10), (0, 0), (0, 5), (700, 801)])
def test_p_values_of_independent_documents_are_binomial(lost: int, gained: int) -> None:
    found = paired_difference(*pairs(4, lost, gained, 2))
    binomial = scipy.stats.binom(lost + gained, 0.5)
    worse = binomial.cdf(gained) - binomial.pmf(gained) / 2
    assert found.p_worse == pytest.approx(worse, rel=1e-9)
    # Mid-p: the plain exact test's (statsmodels' mcnemar(exact=True)) less the chance of what was observed.
    exact = scipy.stats.binomtest(min(lost, gained), lost + gained).pvalue if lost + gained else 1.0
    expected = exact - binomial.pmf(gained) if lost != gained else 1.0
    assert found.p_value == pytest.approx(expected, rel=1e-9)


def test_sign_flips_of_clusters_are_enumerated_exactly() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        first, second = rng.integers(0, 2, 40), rng.integers(0, 2, 40)
        clusters = rng.integers(0, 9, 40)
        sums = [int((second - first)[clusters == cluster].sum()) for cluster in range(9)]
        totals = [
            sum(sign * total for sign, total in zip(signs, sums, strict=True))
            for signs in itertools.product((1, -1), repeat=9)
        ]
        observed = sum(sums)
        worse = np.mean([(total < observed) + (total == observed) / 2 for total in totals])
        found = paired_difference(first.tolist(), second.tolist(), clusters.tolist())
        assert found.p_worse == pytest.approx(worse, abs=1e-12)


@given(documents)
def test_swapping_the_runs_mirrors_the_comparison(rows: list[tuple[int, int, int]]) -> None:
    first, second, clusters = (list(column) for column in zip(*rows, strict=True))
    for by in (None, clusters):
        there, back = paired_difference(first, second, by), paired_difference(second, first, by)
        assert there.p_value == pytest.approx(back.p_value, abs=1e-12)
        assert there.p_worse == pytest.approx(1 - back.p_worse, abs=1e-12)
        assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low), abs=1e-12)
        assert (there.gained, there.lost) == (back.lost, back.gained)
        assert -1 <= there.low <= there.value <= there.high <= 1 and there.low < there.high
        assert 0 <= there.p_value <= 1 and there.stderr >= 0


@given(score_lists)
def test_a_run_against_itself_shows_nothing(scores: list[int]) -> None:
    found = paired_difference(scores, scores)
    assert (found.value, found.p_value, found.p_worse, found.stderr) == (0, 1, 0.5, 1 if len(scores) == 1 else 0)
    assert found.low < 0 < found.high


def test_other_numbers_of_documents_are_not_pairs() -> None:
    with pytest.raises(ValueError, match="2 and 1 scores"):
        paired_difference([1, 0], [1])


def test_one_cluster_proves_nothing() -> None:
    found = paired_difference([1] * 40, [0] * 40, ["template"] * 40)
    assert (found.low, found.high, found.p_worse) == (-1, 1, 0.25)
    assert detectable_drop(found, 0.05) is None


def _null(rng: np.random.Generator, groups: int, size: int, clustered: bool) -> PairedDifference:
    """Two equally good runs; where `clustered`, what sets them apart is shared by a cluster's documents."""
    lean = rng.normal(0, 0.25 if clustered else 0, groups).repeat(size)
    count = groups * size
    first = rng.random(count) < np.clip(0.6 + lean, 0, 1)
    second = rng.random(count) < np.clip(0.6 - lean, 0, 1)
    by = np.arange(groups).repeat(size).tolist() if clustered else None
    return paired_difference(first.astype(int).tolist(), second.astype(int).tolist(), by)


@pytest.mark.parametrize(
    ("groups", "size", "clustered"), [(100, 1, False), (40, 5, False), (30, 10, True), (8, 25, True)]
)
def test_false_alarms_and_coverage_under_the_null(groups: int, size: int, clustered: bool) -> None:
    rng = np.random.default_rng(5)
    found = [_null(rng, groups, size, clustered) for _ in range(1500)]
    assert 0.03 < np.mean([one.p_value < 0.05 for one in found]) < 0.066
    assert 0.03 < np.mean([one.p_worse < 0.05 for one in found]) < 0.066
    assert 0.93 < np.mean([one.low <= 0 <= one.high for one in found]) < 0.98


def test_ignoring_clusters_would_raise_false_alarms() -> None:
    rng = np.random.default_rng(5)
    alarms = []
    for _ in range(500):
        lean = rng.normal(0, 0.25, 30).repeat(10)
        first = (rng.random(300) < np.clip(0.6 + lean, 0, 1)).astype(int).tolist()
        second = (rng.random(300) < np.clip(0.6 - lean, 0, 1)).astype(int).tolist()
        alarms.append(paired_difference(first, second).p_value < 0.05)
    assert np.mean(alarms) > 0.2


# What a test could have noticed, and many tests at once.


@pytest.mark.parametrize(("count", "discordant"), [(50, 0.05), (300, 0.1), (2000, 0.2)])
def test_a_detectable_drop_is_found_as_often_as_it_says(count: int, discordant: float) -> None:
    rng = np.random.default_rng(2)
    gained = round(count * discordant / 2)
    same = paired_difference(*pairs(count - 2 * gained, gained, gained, 0))
    drop = detectable_drop(same, alpha=0.05)
    assert drop is not None
    rate = (gained + 1) / (count + 2)
    found = []
    for _ in range(800):
        kinds = rng.multinomial(count, [1 - 2 * rate - drop, rate + drop, rate])
        found.append(paired_difference(*pairs(int(kinds[0]), int(kinds[1]), int(kinds[2]), 0)).p_worse < 0.05)
    assert 0.74 < np.mean(found) < 0.9


def test_more_documents_notice_smaller_drops_and_clusters_larger_ones() -> None:
    def drop(count: int, clusters: Sequence[int] | None = None) -> float:
        first, second = pairs(count - 20, 10, 10, 0)
        found = detectable_drop(paired_difference(first, second, clusters), 0.05)
        assert found is not None
        return found

    assert drop(50) > drop(200) > drop(3000)
    assert drop(200, [i // 10 for i in range(200)]) > 1.5 * drop(200)


def test_too_few_documents_notice_nothing() -> None:
    # Four documents lost of four are just significant, three of three are not.
    assert paired_difference([1] * 4, [0] * 4).p_worse < 0.05 < paired_difference([1] * 3, [0] * 3).p_worse
    assert detectable_drop(paired_difference([1] * 4, [1] * 4), 0.05) is not None
    assert detectable_drop(paired_difference([1] * 3, [1] * 3), 0.05) is None
    assert detectable_drop(paired_difference([1] * 7, [1] * 7), 0.05 / 27) is None


def test_holm_of_a_worked_example() -> None:
    """As statsmodels' multipletests(method="holm")."""
    assert holm([0.01, 0.04, 0.03, 0.005, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.2])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_lies_between_none_and_bonferroni(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for p_value, found in zip(p_values, adjusted, strict=True):
        assert p_value <= found <= min(1.0, len(p_values) * p_value) or found == 1
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert [adjusted[index] for index in order] == sorted(adjusted)
