"""Recipes and the page on operating: what they say of the server is so."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry

from mtnlg import app as command_line
from serving import processes, server, supervisor
from serving.app import ServerState, add_metrics, build_app
from serving.guard.guard import Guard
from serving.guard.record import Record
from serving.guard.settings import GuardSettings
from serving.tracing import FLUSH_SECONDS
from tests.serving.running_server import ROOT

DEPLOY = ROOT / "configs" / "serving" / "deploy"
UNIT, IMAGE = DEPLOY / "mtnlg.service", DEPLOY / "Containerfile"
OPERATING = ROOT / "docs" / "operating.md"
TEXTS = (OPERATING, ROOT / "docs" / "serving.md", UNIT, IMAGE, DEPLOY / "kubernetes.yaml", DEPLOY / "podmonitor.yaml")
# What an end takes at the very most.
END_SECONDS = (
    server._DRAIN_SECONDS
    + server._BREAK_OFF_SECONDS
    + supervisor._GRACE_SECONDS
    + processes._KILL_SECONDS
    + FLUSH_SECONDS
)


def documents(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((DEPLOY / name).read_text()) if found]


def pod() -> dict[str, Any]:
    [deployment] = [found for found in documents("kubernetes.yaml") if found["kind"] == "Deployment"]
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def unit() -> configparser.ConfigParser:
    """The unit; where a setting stands several times, the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text().replace("\\\n", " "))
    return parser


def commands(text: str) -> list[list[str]]:
    """Every `mtnlg serve` and `mtnlg keys` command in a text, as words."""
    joined = re.sub(r"\\\n[#\s]*", " ", text)
    found = re.findall(r"mtnlg (?:serve|keys \w+) [^\n`|#&;)(]+", joined)
    return [shlex.split(command.rstrip(" ."))[1:] for command in found]


def every_command() -> list[list[str]]:
    found = [command for path in TEXTS for command in commands(path.read_text())]
    found.append(pod()["containers"][0]["args"][1:])
    return [command for command in found if "..." not in command and "--help" not in command]


def leftover(words: list[str]) -> list[str]:
    """What our command line leaves to vLLM of a command. Raises the parser's errors for what neither can take."""
    command: Any = typer.main.get_command(command_line)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    rest: list[str] = command.make_context("mtnlg", list(words)).args
    return rest


def test_commands_are_ours() -> None:
    found = every_command()
    assert len(found) > 12
    for words in found:
        rest = leftover(words)
        assert all(
            word.startswith("--") or before.startswith("--") for before, word in zip(["", *rest], rest, strict=False)
        ), words
        assert words[0] == "serve" or not rest, words


@pytest.mark.slow  # importing vLLM takes its time
def test_the_rest_of_the_commands_is_vllms() -> None:
    pytest.importorskip("vllm")
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = make_arg_parser(FlexibleArgumentParser())._option_string_actions
    given = {word.split("=")[0] for words in every_command() for word in leftover(words) if word.startswith("--")}
    assert given
    assert given - set(options) == set()


def test_probes_ask_what_there_is() -> None:
    routes = {route.path for route in build_app(ServerState(model="m", engine_version="0")).routes}  # type: ignore[attr-defined]
    [container] = pod()["containers"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/live"}
    assert {"/live", "/ready", "/version"} <= routes
    [check] = re.findall(r"127\.0\.0\.1:8000(/\w+)", IMAGE.read_text().split("HEALTHCHECK")[1])
    assert check == "/live"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"--port={ports['http']}" in container["args"]


def test_grace_is_longer_than_an_end() -> None:
    assert int(unit()["Service"]["TimeoutStopSec"]) > END_SECONDS
    [container] = pod()["containers"]
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] > END_SECONDS + wait


def test_pods_are_harmless_and_can_write_where_the_server_does() -> None:
    spec = pod()
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert {"emptyDir"} <= mounts["/tmp"].keys() & mounts["/home/mtnlg"].keys()  # noqa: S108
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"  # noqa: S108
    assert "secret" in mounts["/keys"]
    assert not any("subPath" in mount for mount in container["volumeMounts"])
    user = re.search(r"^USER (\d+):(\d+)$", IMAGE.read_text(), re.M)
    assert user and int(user[1]) == spec["securityContext"]["runAsUser"]


def test_services_and_monitors_select_the_pods() -> None:
    found = documents("kubernetes.yaml") + documents("podmonitor.yaml")
    labels = next(one for one in found if one["kind"] == "Deployment")["spec"]["template"]["metadata"]["labels"]
    for one in found:
        selector = one["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels, one["kind"]


def test_image_installs_extras_that_there_are() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [asked] = re.findall(r'"\.\[([^\]]+)\]"', IMAGE.read_text())
    for engine in ("cpu", "gpu"):
        assert set(asked.replace("${ENGINE}", engine).split(",")) <= set(extras)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_unit_is_valid(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/mtnlg/.venv/bin/mtnlg serve", f"{sys.executable} -m mtnlg serve")
    (tmp_path / UNIT.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    complaints = [line for line in result.stderr.splitlines() if UNIT.name in line]
    assert not complaints


def test_every_metric_is_explained() -> None:
    state = ServerState(model="m", engine_version="0")
    guard = Guard(build_app(state), GuardSettings(log_requests=False), state)
    add_metrics(state, guard.metrics)
    registry: CollectorRegistry = guard.metrics.registry
    suffixes = {"counter": "_total", "info": "_info"}
    there = {family.name + suffixes.get(family.type, "") for family in registry.collect()}
    told = table("| name | type |")
    assert set(told) == there
    types = {
        family.name + suffixes.get(family.type, ""): family.type.replace("info", "gauge")
        for family in registry.collect()
    }
    assert {name: cells[1] for name, cells in told.items()} == types


def test_every_field_of_the_log_is_explained() -> None:
    assert set(table("| field |")) == set(Record.__dataclass_fields__)


def table(header: str) -> dict[str, list[str]]:
    """Rows of a table of the page, by each name in their first cell."""
    lines = OPERATING.read_text().split(header)[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: cells for cells in rows for name in re.findall(r"`(\w+)`", cells[0])}
