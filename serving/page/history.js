// What was asked in this tab, kept until it is closed.

import { byId, element } from "./dom.js";
import { describe } from "./settings.js";

const KEY = "mtnlg-history";
const MOST = 50;

export class History {
  /** `restore(entry)` shows an entry ({time, prompt, system, chat, settings, runs}) again. */
  constructor(restore) {
    this.restore = restore;
    this.entries = [];
    try {
      this.entries = JSON.parse(sessionStorage.getItem(KEY)) ?? [];
    } catch {
      // Written by another version of the page: start anew.
    }
    this.draw();
  }

  add(entry) {
    this.entries = [entry, ...this.entries].slice(0, MOST);
    this.keep();
    this.draw();
  }

  clear() {
    this.entries = [];
    sessionStorage.removeItem(KEY);
    this.draw();
  }

  /** Keep as many of the newest as fit. */
  keep() {
    for (let count = this.entries.length; count > 0; count = Math.floor(count / 2)) {
      try {
        sessionStorage.setItem(KEY, JSON.stringify(this.entries.slice(0, count)));
        return;
      } catch {
        // The browser's quota; the older half can be missed after a reload.
      }
    }
  }

  draw() {
    byId("history-section").hidden = this.entries.length === 0;
    byId("history").replaceChildren(...this.entries.map((entry) => this.line(entry)));
  }

  line(entry) {
    const first = entry.prompt.trim().replace(/\s+/g, " ");
    const asked = first.length > 90 ? `${first.slice(0, 60)} … ${first.slice(-25)}` : first || "(empty prompt)";
    const [one, other] = entry.runs;
    const how = other ? `${describe(one.body, other.body)} / ${describe(other.body, one.body)}` : describe(one.body);
    const time = new Date(entry.time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    const button = element(
      "button",
      { type: "button" },
      element("span", { className: "asked", textContent: asked }),
      element("span", { className: "help", textContent: `${time}, ${how}` }),
    );
    button.addEventListener("click", () => this.restore(entry));
    return element("li", {}, button);
  }
}
