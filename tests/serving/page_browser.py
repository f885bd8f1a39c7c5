"""Chromium on a page that is served, with a person's mouse and keys."""

import time
from typing import Any

from tests.evaluation.test_report_page import Browser

WAIT_SECONDS = 30.0
_KEYS = {"Escape": 27, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9}


class PageBrowser(Browser):
    """A browser that can wait for what happens on the page."""

    def visit(self, url: str) -> None:
        """Load a page and wait for its load event."""
        self.events.clear()
        self.send("Page.navigate", {"url": url})
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def wait(self, condition: str) -> Any:
        """The value of an expression in the page once it is true."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (value := self.run(condition)):
            assert time.monotonic() < deadline, f"never true: {condition}; notice: {self.text('notice-text')!r}"
            time.sleep(0.02)
        return value

    def text(self, name: str) -> str:
        """The text of the element with an id."""
        found: str = self.run(f"document.getElementById({name!r}).textContent")
        return found

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        self.point(selector, "mousePressed", clickCount=1, button="left")
        self.point(selector, "mouseReleased", clickCount=1, button="left")

    def point(self, selector: str, kind: str = "mouseMoved", **more: Any) -> None:
        """Put the mouse on the middle of an element."""
        x, y = self.run(f"""(() => {{ const found = document.querySelector({selector!r});
            found.scrollIntoView({{block: "center", behavior: "instant"}}); const box = found.getClientRects()[0];
            return [box.x + box.width / 2, box.y + box.height / 2]; }})()""")
        self.send("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def press(self, key: str, *, ctrl: bool = False) -> None:
        """Press a key and let it go."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key], "modifiers": 2 if ctrl else 0}
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", {"type": kind, **event})

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        self.run(f"(() => {{ const field = document.querySelector({selector!r}); field.focus(); field.select(); }})()")
        self.send("Input.insertText", {"text": text})

    def asked(self) -> list[str]:
        """The URLs that were requested since the page was opened."""
        self.run("0")
        kind = "Network.requestWillBeSent"
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == kind]

    def complaints(self) -> list[Any]:
        """What the page's console and its scripts complained of: refusals of the policy and errors."""
        self.run("0")
        entries = [event["params"] for event in self.events if event.get("method") == "Log.entryAdded"]
        # A status that the test asked for is logged too.
        wrong = [entry for entry in entries if entry["entry"]["source"] != "network"]
        return wrong + [event for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
