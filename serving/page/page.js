// The page: from a prompt and settings to one answer, or two beside each other.

import { Answer, pieceOf } from "./answer.js";
import { ApiError, apiKey, stream } from "./api.js";
import { followTokens } from "./detail.js";
import { byId, copy, element, fill, save } from "./dom.js";
import { History } from "./history.js";
import { FIGURE_4, TASKS } from "./presets.js";
import { curl, newRun, newSeed } from "./request.js";
import { Server } from "./server.js";
import { Settings, describe } from "./settings.js";

const groups = [new Settings("A"), new Settings("B", { temperature: 0 })];
const detail = followTokens(byId("answers"), pieceOf);
const history = new History(restore);
const server = new Server(recovered);
let running = null;
// What to say once the server is back.
let comeback = "";
let turns = [];
let countdown = 0;

const comparing = () => byId("compare").checked;
const chatting = () => server.chat && document.querySelector("input[name=mode]:checked").value === "chat";
const say = (text) => (byId("status").textContent = text);

function layOut() {
  const shown = comparing() ? groups : groups.slice(0, 1);
  groups.forEach((group) => group.name(comparing()));
  byId("groups").replaceChildren(...shown.map((group) => group.root));
  byId("chat").hidden = !chatting();
  byId("turns").replaceChildren(
    ...turns.map(({ role, content }) =>
      element("li", { className: role }, element("b", { textContent: role }), content)),
  );
  byId("prompt-title").textContent = chatting() ? "Message" : "Prompt";
}

function conversation() {
  const system = byId("system").value.trim();
  const user = { role: "user", content: byId("prompt").value };
  return [...(system ? [{ role: "system", content: system }] : []), ...turns, user];
}

function prepare() {
  const shown = comparing() ? groups : groups.slice(0, 1);
  const wrong = shown.map((group) => group.wrong()).find(Boolean);
  if (wrong) {
    byId("settings").open = true;
    wrong.reportValidity();
    return null;
  }
  const prompt = chatting() ? conversation() : byId("prompt").value;
  const seed = newSeed();
  return shown.map((group) => newRun(group.label, byId("model").value, prompt, { seed, ...group.get() }));
}

async function generate() {
  if (running || byId("generate").getAttribute("aria-disabled") === "true") return;
  const runs = prepare();
  if (!runs) return;
  notice("");
  running = new AbortController();
  buttons();
  say("Generating");
  const answers = place(runs);
  const entry = { time: Date.now(), prompt: byId("prompt").value, system: byId("system").value, chat: chatting(),
    turns, settings: groups.map((group) => group.get()) };
  const errors = (await Promise.all(runs.map((run, place) => fetchAnswer(run, answers[place], running.signal))))
    .filter(Boolean);
  running = null;
  buttons();
  if (runs.some((run) => run.text)) history.add({ ...entry, runs });
  if (errors.length) explain(errors[0]);
  else say(`Done. ${answers.map((answer) => answer.stats.textContent).join(". ")}`);
}

/** Stream one answer into its panel; the error that ended it, or null. A stop by the user is no error. */
async function fetchAnswer(run, answer, signal) {
  answer.begin(run);
  try {
    for await (const event of stream(run.path, { body: run.body, signal })) answer.add(event);
    answer.end();
    return null;
  } catch (error) {
    const stopped = error.name === "AbortError";
    answer.end(stopped ? "stopped" : run.text ? "broke off" : "no answer");
    return stopped ? null : error;
  }
}

function place(runs) {
  const [one, other] = runs.map((run) => run.body);
  const actions = [
    ["Copy", (run, button) => told(button, copy(run.text))],
    ["Copy curl", (run, button) => told(button, copy(curl(run, apiKey() !== "")))],
    ["Save JSON", (run) => save(`mtnlg-answer-${run.label}.json`, run)],
    ["Continue from here", continueFrom],
  ];
  const answers = runs.map(({ label, body }) => {
    const title = other ? `${label}: ${describe(body, body === one ? other : one)}` : "";
    return new Answer(title, actions);
  });
  byId("answers-section").hidden = false;
  byId("answers-title").textContent = other ? "Answers" : "Answer";
  byId("answers").classList.toggle("two", Boolean(other));
  detail.hide();
  byId("answers").replaceChildren(...answers.map((answer) => answer.root));
  byId("answers-section").scrollIntoView({ block: "nearest" });
  return answers;
}

async function told(button, done) {
  const name = button.textContent;
  button.textContent = (await done) ? "Copied" : "Not allowed here";
  say(button.textContent);
  setTimeout(() => (button.textContent = name), 1500);
}

/** In a completion the answer is added to the prompt; in a chat it becomes a turn. */
function continueFrom(run) {
  if (run.body.messages) {
    turns = [...run.body.messages.filter(({ role }) => role !== "system"), { role: "assistant", content: run.text }];
    layOut();
    fill(byId("prompt"), "");
  } else {
    fill(byId("prompt"), run.body.prompt + run.text);
  }
}

function restore(entry) {
  byId("compare").checked = entry.runs.length > 1;
  document.querySelector(`input[name=mode][value=${entry.chat ? "chat" : "completion"}]`).checked = true;
  groups.forEach((group, at) => group.set(entry.settings[at]));
  byId("system").value = entry.system;
  turns = entry.turns;
  layOut();
  fill(byId("prompt"), entry.prompt);
  place(entry.runs).forEach((answer, at) => answer.show(entry.runs[at]));
}

/** Say what went wrong, and what the user can do about it. */
function explain(error) {
  if (!(error instanceof ApiError)) {
    notice(`The page itself failed: ${error.message}`);
    throw error;
  }
  const { status, retryAfter, message } = error;
  if (status === 401) {
    say("An API key is needed.");
    server.askKey(apiKey() ? `The server refused this key: ${message}` : "");
  } else if (status === 429) {
    const when = retryAfter ? ` You can try again in ${retryAfter} s.` : "";
    notice(`The server takes no more now: ${sentence(message)}${when}`, retryAfter ?? 0);
  } else if (status === 503 || status === 0) {
    notice(`${sentence(message)} This page looks again every second.`, 0);
    comeback = status ? "The server takes requests again." : `${message} Now the server takes requests.`;
    server.lost();
  } else {
    notice(status ? `${message} (status ${status})` : message, status >= 500 ? 0 : null);
  }
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

/** The server takes requests again, after a time in which it did not. */
function recovered() {
  if (comeback) notice(comeback, 0);
}

/** Show `text`, or nothing; after `wait` seconds it can be tried again, or never where that is null. */
function notice(text, wait = null) {
  clearInterval(countdown);
  comeback = "";
  byId("notice").hidden = text === "";
  byId("notice-text").textContent = text;
  byId("notice").scrollIntoView({ block: "nearest" });
  const again = byId("again");
  again.hidden = wait === null;
  let left = wait ?? 0;
  const show = () => {
    again.disabled = left > 0;
    again.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    byId("generate").setAttribute("aria-disabled", String(left > 0));
    if (left <= 0) clearInterval(countdown);
  };
  show();
  if (left <= 0) return;
  countdown = setInterval(() => {
    left -= 1;
    show();
    if (left <= 0) say("You can try again.");
  }, 1000);
}

function buttons() {
  byId("generate").setAttribute("aria-disabled", String(running !== null));
  byId("stop").setAttribute("aria-disabled", String(running === null));
}

function stop() {
  if (!running) return false;
  running.abort();
  say("Stopped");
  return true;
}

function choose({ prompt, note, settings }) {
  fill(byId("prompt"), prompt);
  groups[0].set(settings);
  groups[1].set({ ...settings, temperature: settings.temperature ? 0 : 1 });
  byId("preset-note").textContent = note;
  byId("preset-note").hidden = false;
}

function addPresets() {
  for (const [title, presets] of [["Figure 4 of the announcement", FIGURE_4], ["Its other tasks", TASKS]]) {
    const list = element("div", { className: "row", role: "group", ariaLabel: title });
    list.append(element("span", { className: "help", textContent: title }));
    for (const preset of presets) {
      const button = element("button", { type: "button", className: "quiet", textContent: preset.title });
      button.addEventListener("click", () => choose(preset));
      list.append(button);
    }
    byId("presets").append(list);
  }
}

function showColours() {
  byId("answers").classList.toggle("coloured", byId("colour").checked);
  byId("scale").hidden = !byId("colour").checked;
}

function listen() {
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  byId("stop").addEventListener("click", stop);
  byId("again").addEventListener("click", generate);
  byId("compare").addEventListener("change", layOut);
  byId("mode").addEventListener("change", () => {
    turns = [];
    layOut();
  });
  byId("colour").addEventListener("change", showColours);
  byId("prompt").addEventListener("input", () => (byId("preset-note").hidden = true));
  byId("export-all").addEventListener("click", () => save("mtnlg-session.json", history.entries));
  byId("clear-history").addEventListener("click", () => history.clear());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      generate();
    } else if (event.key === "Escape") {
      if (!stop()) detail.hide();
    }
  });
}

addPresets();
// On a phone the answer would be far below.
byId("settings").open = !window.matchMedia("(max-width: 40rem)").matches;
layOut();
listen();
showColours();
server.poll();
