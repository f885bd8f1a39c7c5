// What is asked of the server, and the same as a command.

import { address } from "./api.js";

const ALTERNATIVES = 5;
const STREAM = { stream: true, stream_options: { include_usage: true } };

/** A run that has not begun. `prompt` is a text, or the messages of a conversation. */
export function newRun(label, model, prompt, settings) {
  const chat = Array.isArray(prompt);
  const asked = chat
    ? { messages: prompt, logprobs: true, top_logprobs: ALTERNATIVES }
    : { prompt, logprobs: ALTERNATIVES };
  return {
    label,
    path: chat ? "v1/chat/completions" : "v1/completions",
    body: { model, ...asked, ...settings, ...STREAM },
    text: "",
    tokens: [],
    seconds: null,
    usage: null,
    finish: null,
    problem: null,
  };
}

/** A seed for both sides of a comparison, and to ask for the same answer again. */
export const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The request as a command for a POSIX shell. The key stays out of it: it comes from a variable. */
export function curl({ path, body }, withKey) {
  const parts = [`curl -N ${quoted(address(path))}`, "-H 'Content-Type: application/json'"];
  if (withKey) parts.push('-H "Authorization: Bearer $MTNLG_API_KEY"');
  return [...parts, `--data-raw ${quoted(JSON.stringify(body))}`].join(" \\\n  ");
}
