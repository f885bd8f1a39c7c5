"""Requests made up from the server's own OpenAPI document, right ones and wrong ones: none may be an error of ours."""

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.running_server import END_SECONDS, RunningServer, running_server

pytest.importorskip("vllm")
schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

MODEL = "vllm1"
# Enough to try every operation both ways in a minute or two; MTNLG_OPENAPI_CASES=2000 is the long run.
CASES = int(os.environ.get("MTNLG_OPENAPI_CASES", "600"))
OUR_PATHS = {"/live", "/ready", "/version", "/v1/score"}
THEIR_PATHS = {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/metrics", "/health"}
# Of vLLM's development mode, and those with which a client could change the engine.
DANGEROUS = (
    *("/sleep", "/wake_up", "/reset_prefix_cache", "/reset_mm_cache", "/collective_rpc", "/pause", "/resume"),
    *("/start_profile", "/stop_profile", "/update_weights", "/init_weight_transfer_engine", "/abort_requests"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
)
LIMITS = "limits:\n  max_tokens: 4\n  default_max_tokens: 4\n  default_chat_max_tokens: 4\n  n: 2\n"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("openapi")
    limits, template = folder / "limits.yaml", folder / "chat.jinja"
    limits.write_text(LIMITS)
    template.write_text(TEMPLATE)
    options = ("--limits", str(limits), "--chat-template", str(template), "--access-log", str(folder / "access.jsonl"))
    with running_server(str(models / MODEL), *options) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/openapi.json").json()
    return found


def works(server: RunningServer) -> bool:
    body = {"model": MODEL, "prompt": "the", "max_tokens": 4}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=END_SECONDS).status_code == 200


def test_one_document_has_every_route(document: dict[str, Any]) -> None:
    assert document["paths"].keys() >= OUR_PATHS | THEIR_PATHS
    assert set(document["paths"]["/version"]["get"]["responses"]) == {"200"}
    assert not document["paths"].keys() & set(DANGEROUS)


def test_routes_that_change_the_engine_are_not_there(server: RunningServer) -> None:
    for path in DANGEROUS:
        answer = httpx.post(f"{server.url}{path}", json={"new_data_parallel_size": 1})
        assert answer.status_code == 404, path
    assert works(server)


def run_cases(operation: Any, mode: Any, count: int, server: RunningServer, seen: Counter[int], bad: list[str]) -> None:
    """Send `count` cases; those that the server itself fails at go into `bad`."""
    strategy = operation.as_strategy(generation_mode=mode)

    @hypothesis.settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=strategy, ours=hypothesis.strategies.integers(0, 3))
    def send(case: Any, ours: int) -> None:
        if ours and isinstance(case.body, dict) and "model" in str(operation.definition.raw):
            case.body = {**case.body, "model": MODEL}  # else most would be refused for their model alone
        answer = case.call(base_url=server.url, timeout=END_SECONDS)
        seen[answer.status_code] += 1
        if answer.status_code >= 500:
            bad.append(f"{operation.label}: {answer.status_code} {answer.text[:200]} for {str(case.body)[:600]}")

    send()


def test_no_case_is_an_error_of_the_server(server: RunningServer, document: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    schema = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations()]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    seen: Counter[int] = Counter()
    bad: list[str] = []
    with_body = [operation for operation in operations if operation.body]
    for operation in operations:
        if operation not in with_body:
            run_cases(operation, modes[0], 10, server, seen, bad)
    share = (CASES - seen.total()) // (len(with_body) * len(modes)) + 1
    for operation in with_body:
        for mode in modes:
            run_cases(operation, mode, share, server, seen, bad)
    print(f"{seen.total()} cases: {dict(seen)}")
    assert not bad, "\n".join(bad)
    assert seen.total() >= CASES
    assert seen[200] >= CASES // 50, "hardly any case got through"
    assert works(server)
