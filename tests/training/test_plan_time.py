"""The planned time against published runs, and its parts against arithmetic."""

from dataclasses import fields
from itertools import pairwise

import pytest

from foundation.errors import UserError
from training.planner.cluster import load_cluster
from training.planner.collectives import gather_seconds, reduce_seconds
from training.planner.hardware import Device, Link, Matmul
from training.planner.iteration import Split
from training.planner.options import PlanOptions
from training.planner.published import PublishedRun, published_runs
from training.planner.request import Request, load_model
from training.planner.search import estimate, search
from training.planner.software import EngineName


def request(**changes: object) -> Request:
    """MT-NLG on 280 nodes."""
    values: dict[str, object] = {"tensor": 8, "pipeline": 35, "data": 8, "batch": 1920, **changes}
    return Request(load_model("mt-nlg-530b"), load_cluster("selene", None, None), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: run.name)
def test_published_runs(run: PublishedRun) -> None:
    allowed = 0.05 if run.name.startswith("announcement") else 0.10
    planned = run.request().planned()
    assert planned.fits
    assert planned.iteration.seconds == pytest.approx(run.measured_seconds, rel=allowed)


def test_the_published_rows_are_what_the_papers_say() -> None:
    runs = {run.name: run for run in published_runs()}
    first = runs["announcement, 280 nodes"].request().planned().iteration
    # TFLOP/s by the paper's formula: exact for the time that was published.
    assert first.tflops * first.seconds == pytest.approx(126 * 60.1, rel=0.005)
    selective = runs["sequence parallel, selective, 175 B"].request().planned().iteration
    assert selective.hardware_utilisation / selective.model_utilisation == pytest.approx(52.8 / 51.4, rel=0.002)


def test_the_split_adds_up() -> None:
    iteration = request().planned().iteration
    split = iteration.split
    assert sum(getattr(split, field.name) for field in fields(Split)) == iteration.seconds
    last = max(events[-1].sent for events in iteration.events)
    assert last < iteration.seconds
    assert all(getattr(split, field.name) >= 0 for field in fields(Split))
    assert iteration.closed_bubble == pytest.approx(34 / 240)
    # The idle share of the rest is somewhat more than of equal stages: the last one has the head.
    assert iteration.closed_bubble < split.bubble / (iteration.seconds - split.bubble) < 0.22


def test_what_a_change_changes() -> None:
    base = request().planned().iteration.split
    assert (
        request(recompute="selective", sequence_parallel=True).planned().iteration.split.recompute
        < 0.1 * base.recompute
    )
    megatron = request(engine="megatron-2022").planned().iteration.split
    assert megatron.accumulate == 0 and megatron.slices < base.slices
    changed = request().changed("tp=4")
    assert changed.planned().devices == 2240
    assert changed.planned().config.layout.data_parallel_size == 16
    assert request().changed("nodes=420").planned().config.layout.data_parallel_size == 12


def test_collectives_are_rings() -> None:
    source = {"value": 100.0, "source": "a test"}
    link = Link.model_validate({"gb_per_second": source, "microseconds": {"value": 0.0, "source": "a test"}})
    assert reduce_seconds(8e9, 4, link) == pytest.approx(2 * 3 / 4 * 8e9 / 100e9)
    assert gather_seconds(8e9, 4, link) == pytest.approx(3 / 4 * 8e9 / 100e9)
    assert reduce_seconds(8e9, 1, link) == 0


def test_a_matmul_pays_for_its_last_wave() -> None:
    device = load_cluster("selene", None, None).device
    assert device is not None
    only = device.matmul.model_copy(update={"tiles": (device.matmul.tiles[0],), "depth_overhead": 0.0})
    plain = device.model_copy(update={"matmul": only})

    def computing(columns: int) -> float:
        return plain.matmul_seconds(27 * 256, columns, 4096) - plain.launch_seconds

    # 108 tiles of 256 x 128 fill the device once; one more column of tiles takes a second wave.
    assert computing(4 * 128 + 1) == pytest.approx(2 * computing(4 * 128))
    rate = 2 * 27 * 256 * 512 * 4096 / computing(4 * 128)
    assert rate == pytest.approx(0.81 * 312e12)


def test_the_curve_interpolates() -> None:
    matmul = Matmul(curve=((64, 0.1), (1024, 0.9)), source="a test")
    assert [matmul.share(size) for size in (1, 64, 256, 1024, 9999)] == pytest.approx([0.1, 0.1, 0.5, 0.9, 0.9])
    with pytest.raises(ValueError, match="rise"):
        Matmul(curve=((64, 0.1), (64, 0.9)), source="a test")


@pytest.mark.parametrize("name", ["selene", "dgx-a100", "dgx-h100", "dgx-h200", "workstation"])
def test_cluster_files_say_where_their_values_are_from(name: str) -> None:
    cluster = load_cluster(name, None, None)
    assert cluster.timed and isinstance(cluster.device, Device)
    assert cluster.device.matmul.source and cluster.device.peak_tflops.source


def test_search_finds_the_fastest_that_fits() -> None:
    found = search(request(data=None, nodes=420))
    assert found.best.simulated and all(candidate.planned.fits for candidate in found.candidates)
    simulated = [candidate for candidate in found.candidates if candidate.simulated]
    assert found.best.seconds == min(candidate.seconds for candidate in simulated)
    front = found.front()
    assert all(a.seconds < b.seconds and a.planned.gib > b.planned.gib for a, b in pairwise(front))
    # The estimate only ranks: what was not simulated would not have been among the best.
    assert all(c.estimate == pytest.approx(c.planned.iteration.seconds, rel=0.1) for c in simulated[:8])
    assert found.considered == len(found.candidates) + found.too_large


def test_a_search_says_what_is_the_matter() -> None:
    with pytest.raises(UserError, match=r"none of .* layouts fits 80 GiB; the smallest"):
        search(request(data=None, nodes=4))
    with pytest.raises(UserError, match="no layout uses all 11 nodes"):
        search(request(data=None, nodes=11))


def test_the_estimate_is_near_the_simulation() -> None:
    planned = request().planned()
    assert estimate(planned) == pytest.approx(planned.iteration.seconds, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"virtual_stages": 3}, "does not interleave"),
        ({"virtual_stages": 2, "engine": "megatron-2022"}, "divide the 105 layers"),
        ({"sequence_parallel": True, "engine": "megatron-2021"}, "megatron-2022"),
        ({"batch": 1921}, "not divisible"),
        ({"engine": "magatron"}, "engine"),
    ],
)
def test_plans_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        request(**changes).planned()


def test_memory_by_software_and_zero() -> None:
    """The paper's 20 bytes a parameter; 5 a s^2 b bytes of scores where they are kept."""
    plain = request(zero=0).planned().memories[17]
    assert plain.weights + plain.gradients + plain.optimizer == 20 * plain.parameters
    divided = request(zero=3).planned().memories[17]
    assert divided.weights + divided.gradients + divided.optimizer == pytest.approx(20 * plain.parameters / 8)
    kept = request(recompute="none").planned().memories[34].activations
    selective = request(recompute="selective").planned().memories[34].activations
    scores = 5 * 128 * 2048**2 / 8
    # One micro-batch in flight, three blocks; selective recomputation holds one block's scores again.
    assert kept - selective == pytest.approx(2 * scores)
    assert PlanOptions().engine is EngineName.mtnlg
