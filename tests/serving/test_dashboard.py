"""The dashboard and the alerts: their queries parse, and ask for metrics that the server has."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from serving.app import ServerState, add_metrics, build_app
from serving.guard.guard import Guard
from serving.guard.settings import GuardSettings
from tests.serving.running_server import END_SECONDS, ROOT, running_server

promql = pytest.importorskip("promql_parser")

CONFIGS = ROOT / "configs" / "serving"
GRID_WIDTH = 24
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count", "")}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / "grafana.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((CONFIGS / "alerts.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    found = dashboard()
    queries = [target["expr"] for panel in found["panels"] for target in panel.get("targets", [])]
    return queries + [entry["expr"] for entry in found["annotations"]["list"]]


def variable_selectors() -> list[str]:
    """The metrics that the dashboard's variables are read from."""
    queries = [entry["query"]["query"] for entry in dashboard()["templating"]["list"] if entry["type"] == "query"]
    return [re.fullmatch(r"label_values\((.+), \w+\)", query)[1] for query in queries]  # type: ignore[index]


def parse(query: str) -> Any:
    """The query's tree, with the times that Grafana puts in."""
    return promql.parse(query.replace("$__rate_interval", "5m").replace("$__range", "1h"))


def metrics_in(expression: Any) -> Iterator[tuple[str, set[str]]]:
    """Names of metrics with the labels that they are selected by."""
    found = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers}))
        return True

    promql.walk(expression, visit)
    yield from found


def queries() -> list[str]:
    return dashboard_queries() + variable_selectors() + [rule["expr"] for rule in rules()]


def names_asked() -> set[str]:
    return {name for query in queries() for name, _ in metrics_in(parse(query))}


def names_served(text: str) -> set[str]:
    """Names of samples that a server has, of metrics without one too."""
    return {
        family.name + suffix
        for family in text_string_to_metric_families(text)
        for suffix in SUFFIXES.get(family.type, ("",))
    }


def test_queries_parse_and_select_something() -> None:
    assert len(queries()) > 40
    for query in queries():
        assert list(metrics_in(parse(query))), query


def test_selectors_use_labels_that_there_are() -> None:
    by_name = {"mtnlg_requests_total": {"key", "route", "status"}, "mtnlg_refusals_total": {"key", "route", "reason"}}
    plain = ("mtnlg_ready", "mtnlg_engine", "mtnlg_queue", "mtnlg_running", "mtnlg_drain", "mtnlg_server")
    for query in queries():
        for name, labels in metrics_in(parse(query)):
            own = by_name.get(name, {"key", "route"})
            if name.startswith(plain) or not name.startswith("mtnlg_"):
                own = set()
            assert labels <= own | {"instance"}, query


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID_WIDTH, panel["title"]
        columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in lines}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_panels_say_what_they_show_and_follow_the_data_source() -> None:
    found = dashboard()
    variables = {entry["name"] for entry in found["templating"]["list"]}
    assert variables == {"datasource", "instance", "key", "route"}
    for panel in found["panels"]:
        if panel["type"] != "row":
            assert panel["description"] and panel["datasource"]["uid"] == "${datasource}", panel["title"]
        references = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(references)) == len(references)
    for query in dashboard_queries():
        assert set(re.findall(r"\$(\w+)", query)) <= variables | {"__rate_interval", "__range"}, query


def test_alerts_are_whole() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 8
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")


def test_alerts_are_explained() -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
    assert {rule["alert"] for rule in rules()} == set(re.findall(r"\bMtnlg\w+", text))


@pytest.fixture
def loading_metrics() -> str:
    """What a server shows before it has an engine."""
    state = ServerState(model="m", engine_version="1.2")
    guard = Guard(build_app(state), GuardSettings(log_requests=False), state)
    add_metrics(state, guard.metrics)
    state.metrics = guard.metrics_text

    async def ask() -> str:
        transport = httpx.ASGITransport(app=guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get("/metrics")).text

    return asyncio.run(ask())


def test_own_metrics_are_there_while_loading(loading_metrics: str) -> None:
    asked = {name for name in names_asked() if name.startswith("mtnlg_")}
    assert asked - names_served(loading_metrics) == set()
    samples = {s.name: s for family in text_string_to_metric_families(loading_metrics) for s in family.samples}
    assert samples["mtnlg_ready"].value == 0
    assert samples["mtnlg_engine_restarts_total"].value == 0
    assert samples["mtnlg_server_info"].labels["model"] == "m"


@pytest.mark.slow
def test_every_metric_is_there_in_a_running_server(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    with running_server(str(models / "vllm1"), "--access-log", str(tmp_path / "access.jsonl")) as server:
        body = {"model": "vllm1", "prompt": "the", "max_tokens": 8, "stream": True}
        for _ in range(2):
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=END_SECONDS)
            assert answer.status_code == 200
        text = httpx.get(f"{server.url}/metrics").text
    assert names_asked() - names_served(text) == set()
    samples = {
        (s.name, s.labels.get("route")): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }
    assert samples["mtnlg_ready", None] == 1
    assert samples["mtnlg_queue_requests_limit", None] == 256
    assert samples["mtnlg_running_tokens_limit", None] > 0
    assert samples["mtnlg_time_to_first_token_seconds_count", "/v1/completions"] == 2
