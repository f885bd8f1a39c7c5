"""The corpus report in a browser: it runs from a file, asks nothing of a network, and samples can be looked through."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.test_report_page import BROWSER, Browser, luminance
from tests.training.corpus.report_folder import DATASETS, HOSTILE, LEFT, RULES, write_corpus
from training.corpus.report.page import write_report
from training.corpus.report.samples import DROPPED_A_RULE, KEPT

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium to open the page in")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_corpus(tmp_path_factory.mktemp("report") / "corpus"))


@pytest.fixture
def page(browser: Browser, report: Path) -> Browser:
    browser.open(report)
    return browser


def shown(page: Browser) -> list[dict[str, Any]]:
    script = """[...document.querySelectorAll("#list .sample")].map((one) => ({
        title: one.querySelector("h3").textContent, text: one.textContent }))"""
    found: list[dict[str, Any]] = page.run(script)
    return found


def choose(page: Browser, control: str, value: str) -> None:
    page.run(f"""(() => {{ const control = document.getElementById({control!r}); control.value = {value!r};
        control.dispatchEvent(new Event("input", {{bubbles: true}})); }})()""")


def test_page_asks_nothing_of_a_network_and_runs_nothing_of_the_data(page: Browser, report: Path) -> None:
    asked = [
        event["params"]["request"]["url"] for event in page.events if event["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    assert [event for event in page.events if event["method"] in {"Log.entryAdded", "Runtime.exceptionThrown"}] == []
    assert page.run("[...document.images].every((one) => one.src.startsWith('data:'))")


def test_samples_can_be_chosen_by_stage_dataset_and_rule_and_searched(page: Browser) -> None:
    assert page.run("[...document.getElementById('stage').options].map((one) => one.value)") == list(LEFT)
    assert len(shown(page)) == KEPT * len(DATASETS)
    choose(page, "stage", "clean")
    choose(page, "dataset", "web")
    assert len(shown(page)) == KEPT + DROPPED_A_RULE
    choose(page, "rule", RULES["clean"])
    dropped = shown(page)
    assert [one["title"].endswith(f"✗ {RULES['clean']}") for one in dropped] == [True] * DROPPED_A_RULE
    assert all(HOSTILE in one["text"] for one in dropped)
    choose(page, "rule", "kept")
    assert len(shown(page)) == KEPT
    title = shown(page)[1]["title"].split()[0]
    choose(page, "search", title.upper())
    assert [one["title"].split()[0] for one in shown(page)] == [title]
    choose(page, "search", "no such words")
    assert shown(page) == []
    assert page.run("document.getElementById('found').textContent") == "0 documents"


def test_bars_are_as_long_as_their_numbers(page: Browser) -> None:
    widths = page.run("""[...document.querySelectorAll("#waterfall table")].slice(0, 1).flatMap((table) =>
        [...table.querySelectorAll("tbody tr")].map((row) => {
            const all = row.querySelector("svg").getBoundingClientRect();
            const kept = [...row.querySelectorAll("rect:not(.lost)")].map((one) => one.getBoundingClientRect());
            return [Math.max(...kept.map((one) => one.right)) - all.left, all.width]; }))""")
    assert [kept / whole for kept, whole in widths] == pytest.approx(
        [sum(left) / 100 for left in LEFT.values()], abs=0.01
    )


def test_page_is_not_wider_than_a_phone(browser: Browser, report: Path) -> None:
    size = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.send("Emulation.setDeviceMetricsOverride", size)
    browser.open(report)
    assert browser.run("document.documentElement.scrollWidth") <= 375
    browser.send("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_contrast_with_the_ground(browser: Browser, report: Path, scheme: str) -> None:
    browser.send("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.open(report)
    names = ["--ink", "--soft", "--accent", "--right", "--wrong", *(f"--set{number}" for number in range(8))]
    colours = browser.run(f"""{[*names, "--ground", "--mark"]!r}.map((name) =>
        getComputedStyle(document.documentElement).getPropertyValue(name).trim())""")
    browser.send("Emulation.setEmulatedMedia", {"features": []})
    *colours, ground, mark = map(luminance, colours)
    for name, colour in zip(names, colours, strict=True):
        # WCAG 2.2, success criteria 1.4.3 for text and 1.4.11 for pictures.
        assert contrast(colour, ground) >= (3.0 if name.startswith("--set") else 4.5), name
    assert contrast(colours[0], mark) >= 4.5


def contrast(one: float, other: float) -> float:
    light, dark = sorted((one, other), reverse=True)
    return (light + 0.05) / (dark + 0.05)
