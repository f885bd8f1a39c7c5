"""report.html in a browser: it runs from a file, asks nothing of a network, and the samples can be looked through."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluation.report.reports import write_reports
from tests.evaluation.report_run import HOSTILE, change_run, read_run, write_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
# The protocol's pipes are file descriptors 3 and 4; copied twice, because either may have the other's number.
LAUNCH = """import os, sys
for target, source in [(60, sys.argv[1]), (61, sys.argv[2]), (3, 60), (4, 61)]: os.dup2(int(source), target)
os.closerange(5, 62)
os.execv(sys.argv[3], sys.argv[3:])"""
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium to open the page in")


class Browser:
    """Chromium without a window, spoken to over pipes in the DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(read_commands), str(write_answers), *self._command(profile)],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session: str | None = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})[
            "sessionId"
        ]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.send(f"{domain}.enable")

    @staticmethod
    def _command(profile: Path) -> list[str]:
        flags = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"]
        return [str(BROWSER), *(f"--{flag}" for flag in flags), "--remote-debugging-pipe", f"--user-data-dir={profile}"]

    def send(self, method: str, parameters: dict[str, Any] | None = None) -> Any:
        """A command's result; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        if session := getattr(self, "_session", None):
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def open(self, path: Path) -> None:
        """Load a page and wait for its load event."""
        self.events.clear()
        self.send("Page.navigate", {"url": path.as_uri()})
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", {"expression": script, "returnByValue": True})
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._commands)
        os.close(self._answers)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._answers, 1 << 16)
            assert read, "the browser ended"
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("run"), documents=45)
    change_run(run, model={**read_run(run)["model"], "path": HOSTILE})
    write_reports(run)
    return run


@pytest.fixture
def page(browser: Browser, folder: Path) -> Browser:
    browser.open(folder / "report.html")
    return browser


def shown(page: Browser) -> list[dict[str, Any]]:
    script = """[...document.querySelectorAll(".sample")].map((one) => ({
        title: one.querySelector("h3").textContent, text: one.textContent,
        right: one.querySelectorAll(".is-right").length, chosen: one.querySelectorAll(".is-chosen").length,
        bars: [...one.querySelectorAll(".bar div")].map((bar) => parseFloat(bar.style.width)),
        numbers: [...one.querySelectorAll(".number")].map((number) => parseFloat(number.textContent)) }))"""
    found: list[dict[str, Any]] = page.run(script)
    return found


def choose(page: Browser, control: str, value: str) -> None:
    page.run(f"""(() => {{ const control = document.getElementById({control!r}); control.value = {value!r};
        control.dispatchEvent(new Event(control.id === "search" ? "input" : "change", {{bubbles: true}}));
        control.dispatchEvent(new Event("input", {{bubbles: true}})); }})()""")


def stored(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples" / f"{name}.jsonl").read_text().splitlines()]


def test_page_asks_nothing_of_a_network_and_runs_nothing_of_the_data(page: Browser, folder: Path) -> None:
    asked = [
        event["params"]["request"]["url"] for event in page.events if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [(folder / "report.html").as_uri()]
    assert [event for event in page.events if event["method"] in {"Log.entryAdded", "Runtime.exceptionThrown"}] == []
    assert HOSTILE.strip() in page.run("document.title")
    assert page.run("document.images.length") == 0


def test_policy_stops_a_request_and_a_foreign_script(page: Browser) -> None:
    failed = "fetch('data:,x').then(() => 'loaded', () => 'stopped')"
    found = page.send("Runtime.evaluate", {"expression": failed, "awaitPromise": True, "returnByValue": True})
    assert found["result"]["value"] == "stopped"
    page.run("""(() => { const script = document.createElement("script"); script.textContent = "window.taken = 1";
        document.body.append(script); })()""")
    assert page.run("typeof window.taken") == "undefined"


def test_samples_can_be_filtered_searched_and_paged(page: Browser, folder: Path) -> None:
    choose(page, "task", "race_h")
    choose(page, "cell", "race_h-10shot")
    lines = stored(folder, "race_h-10shot")
    assert [one["title"].split()[1] for one in shown(page)] == [str(number) for number in range(10)]
    page.run("document.getElementById('next').click()")
    assert shown(page)[0]["title"].startswith("document 10 ")
    for _ in range(9):
        page.run("document.getElementById('next').click()")
    assert page.run("document.getElementById('page').textContent") == "5 / 5"
    assert page.run("[document.getElementById('previous').disabled, document.getElementById('next').disabled]") == [
        False,
        True,
    ]
    assert [one["title"].split()[1] for one in shown(page)] == [str(number) for number in range(40, 45)]
    for outcome, acc in (("wrong", 0.0), ("right", 1.0)):
        page.run(f"document.querySelector('input[value={outcome}]').click()")
        expected = [
            f"document {line['doc_id']} {'✓ right' if acc else '✗ wrong'}" for line in lines if line["acc"] == acc
        ]
        assert [one["title"] for one in shown(page)] == expected[:10]
        assert all(one["right"] == 1 and one["chosen"] == 1 for one in shown(page))
    page.run("document.querySelector('input[value=all]').click()")
    choose(page, "search", "question: 17, DID")
    assert [one["title"].split()[1] for one in shown(page)] == ["17"]
    choose(page, "search", "no such words")
    assert shown(page) == []
    assert page.run("document.getElementById('found').textContent").startswith("0 of the 45 documents")


def test_likelier_choices_have_longer_bars(page: Browser) -> None:
    choose(page, "task", "hellaswag")
    for one in shown(page):
        order = sorted(range(4), key=lambda place: one["numbers"][place])
        assert [one["bars"][place] for place in order] == sorted(one["bars"])
        assert min(one["bars"]) > 0


def test_a_hostile_prompt_is_shown_as_it_is(page: Browser) -> None:
    choose(page, "task", "piqa")
    choose(page, "search", "onerror")
    (one,) = shown(page)
    assert HOSTILE in one["text"]
    assert page.run("document.images.length") == 0


def test_a_figure_of_the_table_leads_to_its_samples(page: Browser) -> None:
    page.run("document.querySelector('a[data-cell=\"hans-4shot\"]').click()")
    assert page.run("[document.getElementById('task').value, document.getElementById('cell').value]") == [
        "hans",
        "hans-4shot",
    ]
    assert page.run("location.hash") == "#samples"


def test_page_is_not_wider_than_a_phone(browser: Browser, folder: Path) -> None:
    size = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.send("Emulation.setDeviceMetricsOverride", size)
    browser.open(folder / "report.html")
    assert browser.run("document.documentElement.scrollWidth") <= 375
    browser.send("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrasts_with_the_ground(browser: Browser, folder: Path, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.send("Emulation.setEmulatedMedia", {"features": features})
    browser.open(folder / "report.html")
    pairs = browser.run("""["--ink", "--soft", "--accent", "--right", "--wrong"].flatMap((name) =>
        ["--ground", "--raised"].map((ground) => [name, ground].map((one) =>
            getComputedStyle(document.documentElement).getPropertyValue(one).trim())))""")
    browser.send("Emulation.setEmulatedMedia", {"features": []})
    grounds = {ground for _, ground in pairs}
    assert len(grounds) == 2
    for ink, ground in pairs:
        light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
        # WCAG 2.2, success criterion 1.4.3.
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


def luminance(colour: str) -> float:
    """Relative luminance of #rgb or #rrggbb, as WCAG 2.2 defines it."""
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
