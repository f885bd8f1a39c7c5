"""Every layout of a model on a cluster: which fit, how fast each is, the Pareto front, and why the best one is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from foundation.errors import UserError
from training.planner.collectives import Wiring
from training.planner.costs import CostModel
from training.planner.iteration import Split, StepCosts, micro_batches
from training.planner.planned import Planned
from training.planner.report import LABELS
from training.planner.request import Request
from training.planner.software import ENGINES, EngineName

_MICRO_BATCHES = (1, 2, 4, 8, 16)
_RECOMPUTATIONS = ("none", "selective", "full")
_MOST_PARTS = 8
# Simulated; the estimate, which is within a few percent, ranks the others.
_SIMULATED = 24


@dataclass(frozen=True)
class Candidate:
    """A layout that fits, and its time: simulated, or an estimate."""

    request: Request
    planned: Planned
    estimate: float
    simulated: bool

    @property
    def seconds(self) -> float:
        """Of an iteration."""
        return self.planned.iteration.seconds if self.simulated else self.estimate


@dataclass(frozen=True)
class Found:
    """What a search found: candidates by time, and how many layouts were looked at and did not fit."""

    candidates: list[Candidate]
    considered: int
    too_large: int
    narrowest: Candidate | None

    @property
    def best(self) -> Candidate:
        """The fastest."""
        return self.candidates[0]

    def front(self) -> list[Candidate]:
        """Those that no other beats in both time and memory, fastest first."""
        front: list[Candidate] = []
        for candidate in self.candidates:
            if not front or candidate.planned.gib < front[-1].planned.gib - 0.05:
                front.append(candidate)
        return front


def search(request: Request) -> Found:
    """All layouts that use every device of the request's nodes.

    Pruned: tensor groups stay within a node, and stages are equal. Raises UserError when nothing fits.
    """
    fitting, considered, too_large, narrowest = [], 0, 0, None
    for option in _options(request):
        try:
            planned = option.planned()
        except UserError:
            continue
        considered += 1
        if not planned.fits:
            too_large += 1
            if narrowest is None or planned.gib < narrowest.planned.gib:
                narrowest = Candidate(option, planned, 0.0, simulated=False)
            continue
        fitting.append(Candidate(option, planned, estimate(planned), simulated=False))
    if not fitting:
        raise UserError(_nothing_fits(request, considered, narrowest))
    fitting.sort(key=lambda candidate: candidate.estimate)
    worth = {id(candidate) for candidate in fitting[:_SIMULATED]}
    worth |= {id(candidate) for candidate in Found(fitting, 0, 0, None).front()}
    candidates = [replace(c, simulated=True) if id(c) in worth else c for c in fitting]
    candidates.sort(key=lambda candidate: candidate.seconds)
    return Found(candidates, considered, too_large, narrowest)


def estimate(planned: Planned) -> float:
    """An iteration's time without simulating it: the slowest rank's work, and a bubble of mean ranks."""
    config, options, cluster = planned.config, planned.options, planned.cluster
    if cluster.device is None:
        raise ValueError("the cluster has no device")
    wiring = Wiring(cluster, config.layout)
    model = CostModel(config, options, cluster.device, wiring)
    chunks, ranks = model.chunks(), config.layout.pipeline_parallel_size
    work = [
        sum(chunk.forward_seconds + chunk.backward_seconds for chunk in chunks[rank::ranks]) for rank in range(ranks)
    ]
    handing = 0.0
    if ranks > 1:
        each = options.software.exchange_seconds + model.boundary_bytes / wiring.boundary(0, 1).bytes_per_second
        handing = (2 if options.software.duplex else 4) * options.virtual_stages * each
    step = StepCosts(config, options, cluster.device, wiring)
    count = micro_batches(config)
    pipeline = count * (max(work) + handing) + (ranks - 1) / options.virtual_stages * (sum(work) / ranks + handing)
    return pipeline + step.replicas(0, 0.0) + step.optimizer(0) + step.tied


def reasons(found: Found) -> list[str]:
    """Why the best layout is: what the best layout with another choice would cost, choice by choice."""
    best = found.best
    lines = []
    for title, field in (
        ("tensor slices", "tensor"),
        ("stages", "pipeline"),
        ("micro-batch", "micro_batch"),
        ("recomputation", "recompute"),
        ("sequence parallelism", "sequence_parallel"),
        ("parts a rank", "virtual_stages"),
    ):
        chosen = getattr(best.request, field)
        rival = next((c for c in found.candidates if getattr(c.request, field) != chosen), None)
        if rival is not None:
            lines.append(f"{title} {chosen}, not {getattr(rival.request, field)}: {_against(best, rival)}")
    return lines


def describe(candidate: Candidate) -> str:
    """A layout in a few words."""
    request, layout = candidate.request, candidate.planned.config.layout
    extras = [f"micro-batch {request.micro_batch}", f"recompute {request.recompute}"]
    extras += ["sequence-parallel"] if request.sequence_parallel else []
    extras += [f"{request.virtual_stages} parts"] if request.virtual_stages > 1 else []
    sizes = (layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size)
    return f"{','.join(map(str, sizes))} {', '.join(extras)}"


def _against(best: Candidate, rival: Candidate) -> str:
    slower = rival.seconds / best.seconds - 1
    text = f"the best such, {describe(rival)}, is {slower:.1%} slower"
    if not rival.simulated:
        return f"{text} (estimated)"
    ours, theirs = best.planned.iteration.split, rival.planned.iteration.split
    worst = max((field.name for field in fields(Split)), key=lambda name: getattr(theirs, name) - getattr(ours, name))
    more = getattr(theirs, worst) - getattr(ours, worst)
    return f"{text}, {more:.3g} s more {LABELS[worst]}" if more > 0.001 * best.seconds else text


def _options(request: Request) -> Iterator[Request]:
    model, per_node = request.base.model, request.cluster.gpus_per_node
    nodes = request.nodes or request.cluster.nodes
    if nodes is None:
        raise UserError("--search needs --nodes")
    devices = nodes * per_node
    interleaving = ENGINES[EngineName(request.engine)].interleaving
    for tensor in _divisors(model.num_attention_heads, min(per_node, devices)):
        for pipeline in _divisors(model.num_layers, model.num_layers):
            if devices % (tensor * pipeline):
                continue
            data = devices // (tensor * pipeline)
            for micro_batch in _MICRO_BATCHES:
                if request.batch % (data * micro_batch):
                    continue
                for parts in _parts(model.num_layers, pipeline, interleaving):
                    for recompute in _RECOMPUTATIONS:
                        for sequence in (False, True) if tensor > 1 else (False,):
                            yield replace(
                                request,
                                tensor=tensor,
                                pipeline=pipeline,
                                data=data,
                                micro_batch=micro_batch,
                                recompute=recompute,
                                sequence_parallel=sequence,
                                virtual_stages=parts,
                                nodes=nodes,
                            )


def _parts(layers: int, stages: int, interleaving: bool) -> Sequence[int]:
    return _divisors(layers // stages, _MOST_PARTS) if interleaving and stages > 1 else (1,)


def _divisors(number: int, most: int) -> list[int]:
    return [candidate for candidate in range(1, most + 1) if number % candidate == 0]


def _nothing_fits(request: Request, considered: int, narrowest: Candidate | None) -> str:
    if narrowest is None:
        return (
            f"no layout uses all {request.nodes} nodes of {request.cluster.gpus_per_node} devices: tensor x pipeline x "
            f"data must be their number, the tensor size divide the heads, the stages divide the "
            f"{request.base.model.num_layers} layers, and the replicas the batch {request.batch}"
        )
    return (
        f"none of {considered} layouts fits {request.cluster.gpu_memory_gib:g} GiB; the smallest, "
        f"{describe(narrowest)}, takes {narrowest.planned.gib:.1f}"
    )
