// One answer: its text token by token, and what it took.

import { element } from "./dom.js";
import { Aligner, bin, tokensOf } from "./tokens.js";

const pieces = new WeakMap();

/** What a token's element shows: {text, tokens, ending}. */
export const pieceOf = (span) => pieces.get(span);

/** A panel for one run. A run is {label, path, body, text, tokens, seconds, usage, finish, problem}. */
export class Answer {
  constructor(title, actions) {
    this.text = element("div", { className: "text" });
    this.rest = document.createTextNode("");
    this.text.append(this.rest);
    this.stats = element("p", { className: "stats" });
    const buttons = actions.map(([name, act]) => {
      const button = element("button", { type: "button", className: "quiet", textContent: name });
      button.addEventListener("click", () => act(this.run, button));
      return button;
    });
    this.tools = element("p", { className: "bar tools", hidden: true }, ...buttons);
    this.root = element("article", { className: "answer" });
    if (title) this.root.append(element("h3", { textContent: title }));
    this.root.append(this.text, this.stats, this.tools);
    this.align = new Aligner();
  }

  /** Before the first token. */
  begin(run) {
    this.run = run;
    this.root.classList.add("running");
    this.root.setAttribute("aria-busy", "true");
    this.started = performance.now();
    this.stats.textContent = "waiting for the first token";
  }

  /** Take in an event of the stream. */
  add(event) {
    const { run } = this;
    if (event.usage) run.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    const text = choice.text ?? choice.delta?.content ?? "";
    const tokens = tokensOf(choice);
    if (choice.finish_reason) run.finish = choice.finish_reason;
    if (!text && !tokens.length) return;
    const now = (performance.now() - this.started) / 1000;
    run.seconds ??= { first: now, last: now, inFirst: tokens.length || 1 };
    run.seconds.last = now;
    run.text += text;
    run.tokens.push(...tokens);
    this.append(this.align.push(text, tokens));
  }

  /** After the last event; `problem` says why it is not whole. */
  end(problem = null) {
    this.run.problem = problem;
    this.append(this.align.push("", [], true));
    this.finish();
  }

  /** Show a run that has ended before. */
  show(run) {
    this.run = run;
    this.append(this.align.push(run.text, run.tokens, true));
    this.finish();
  }

  finish() {
    this.root.classList.remove("running");
    this.root.removeAttribute("aria-busy");
    this.stats.replaceChildren(...summary(this.run).map((text) => element("span", { textContent: text })));
    this.tools.hidden = !this.run.text;
    this.text.hidden = !this.run.text && this.run.problem !== null;
  }

  append(settled) {
    const spans = settled.map(({ text, tokens }) => {
      const ending = text === "";
      const known = tokens.every((one) => one.logprob !== null);
      const likely = known && !ending ? `p${bin(tokens.reduce((sum, one) => sum + one.logprob, 0))}` : "";
      const breaks = /^[\r\n]+$/.test(text) ? " breaks" : "";
      const className = `token ${ending ? "ending" : likely}${breaks}`;
      const span = element("span", { className, textContent: ending ? "∎" : text, tabIndex: -1 });
      pieces.set(span, { text, tokens, ending });
      return span;
    });
    if (spans.length && !this.text.querySelector(".token")) spans[0].tabIndex = 0;
    this.rest.before(...spans);
    this.rest.data = this.align.rest;
  }
}

/** The likeliness of the whole answer: the exponential of the mean negative log-probability of its tokens. */
function perplexity(tokens) {
  const known = tokens.filter((token) => token.logprob !== null).map((token) => token.logprob);
  return known.length ? Math.exp(-known.reduce((sum, one) => sum + one, 0) / known.length) : null;
}

/** A number with three digits, or as many as it has before the point. */
const threeDigits = (number) => (number < 999.5 ? number.toPrecision(3) : number.toFixed(0));

const ENDINGS = {
  length: "ended at max tokens",
  stop: "ended by itself or a stop string",
  abort: "ended by the server",
};

/** What it took, as short texts. */
function summary({ seconds, usage, tokens, finish, problem, body }) {
  const count = usage?.completion_tokens ?? tokens.length;
  const parts = [];
  if (problem) parts.push(problem);
  else parts.push(ENDINGS[finish] ?? (finish ? `ended: ${finish}` : "ended"));
  if (seconds) {
    parts.push(`first token after ${seconds.first.toFixed(seconds.first < 1 ? 3 : 2)} s`);
    const rate = (count - seconds.inFirst) / (seconds.last - seconds.first);
    if (count > seconds.inFirst && Number.isFinite(rate)) parts.push(`${threeDigits(rate)} tokens/s`);
  }
  if (seconds || usage) parts.push(`${usage ? `${usage.prompt_tokens} tokens of prompt, ` : ""}${count} of answer`);
  const likely = perplexity(tokens);
  if (likely !== null) parts.push(`perplexity ${threeDigits(likely)}`);
  parts.push(`seed ${body.seed}`);
  return parts;
}
