// The sampling controls: one group of them, or two beside each other.

import { element } from "./dom.js";

const CONTROLS = [
  { name: "max_tokens", title: "Max tokens", value: 128, min: 1, step: 1, max: 1e6, needed: true,
    help: "The answer's length at most. A token is about four characters of English." },
  { name: "temperature", title: "Temperature", value: 0.8, min: 0, step: 0.05, max: 2, needed: true,
    help: "0 always takes the likeliest token; 1 samples as the model has learnt; higher is bolder." },
  { name: "top_p", title: "Top-p", value: 1, min: 0.01, step: 0.01, max: 1, needed: true,
    help: "Samples from the likeliest tokens that make up this share; 1 from all." },
  { name: "top_k", title: "Top-k", value: 0, min: 0, step: 1, max: 1e6, needed: true,
    help: "Samples from this many of the likeliest tokens; 0 from all." },
  { name: "repetition_penalty", title: "Repetition penalty", value: 1, min: 0.5, step: 0.05, max: 3, needed: true,
    help: "Above 1, tokens that were already there become less likely; 1 changes nothing." },
  { name: "seed", title: "Seed", value: "", min: 0, step: 1, max: 2 ** 53 - 1, needed: false,
    help: "The same seed and settings give the same answer. Empty: a new one each time." },
];
const STOP_HELP = "The answer ends before any of these. One a line; write \\n for a line break.";

const escaped = (text) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
const unescaped = (text) => text.replace(/\\(.)/g, (_, letter) => ({ n: "\n", t: "\t" })[letter] ?? letter);

/** One group of controls, named A or B. */
export class Settings {
  constructor(label, value = {}) {
    this.label = label;
    this.inputs = new Map();
    this.legend = element("legend", { textContent: "Settings" });
    this.stop = element("textarea", { id: `stop-${label}`, rows: 2, spellcheck: false });
    this.root = element("fieldset", { className: "group", id: `group-${label}` }, this.legend);
    for (const control of CONTROLS) this.add(control);
    this.root.append(this.field(this.stop, "Stop strings", STOP_HELP));
    this.set(value);
  }

  add({ name, title, value, min, max, step, needed, help }) {
    const input = element("input", { type: "number", id: `${name}-${this.label}`, min, max, step, required: needed });
    input.inputMode = Number.isInteger(step) ? "numeric" : "decimal";
    input.defaultValue = value;
    this.inputs.set(name, input);
    this.root.append(this.field(input, title, help));
  }

  field(input, title, help) {
    const note = element("small", { id: `${input.id}-help`, className: "help", textContent: help });
    input.setAttribute("aria-describedby", note.id);
    const label = element("label", { htmlFor: input.id, textContent: title });
    return element("div", { className: `field ${input.type}` }, label, input, note);
  }

  /** Name the group, or leave it nameless where it is the only one. */
  name(shown) {
    this.legend.textContent = shown ? `Settings ${this.label}` : "Settings";
    this.legend.classList.toggle("hidden", !shown);
  }

  /** What the controls hold, under the names of the API. */
  get() {
    const values = {};
    for (const [name, input] of this.inputs) if (input.value !== "") values[name] = input.valueAsNumber;
    const stop = this.stop.value.split("\n").map(unescaped).filter((text) => text !== "");
    if (stop.length) values.stop = stop;
    return values;
  }

  /** Show `values`; what they leave out gets its default. */
  set(values) {
    for (const [name, input] of this.inputs) input.value = values[name] ?? input.defaultValue;
    this.stop.value = (values.stop ?? []).map(escaped).join("\n");
  }

  /** The first control whose value will not do, or undefined. */
  wrong() {
    return [...this.inputs.values()].find((input) => !input.checkValidity());
  }
}

/** What tells settings apart from others in a line, such as "temperature 0, top-p 0.9". */
export function describe(values, others = null) {
  const told = [["temperature", "temperature"], ["top_p", "top-p"], ["top_k", "top-k"],
    ["repetition_penalty", "repetition penalty"], ["max_tokens", "max tokens"], ["seed", "seed"]];
  const different = others && told.filter(([name]) => values[name] !== others[name]);
  const listed = different?.length ? different : told.slice(0, 1);
  return listed.map(([name, title]) => `${title} ${values[name] ?? "any"}`).join(", ");
}
