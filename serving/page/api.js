// Requests to the server that gave this page: JSON, server-sent events, and errors that say what to do.

/** What went wrong with a request. `status` is 0 where there was no answer; `retryAfter` is in seconds. */
export class ApiError extends Error {
  constructor(message, { status = 0, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const KEY = "mtnlg-api-key";

export const apiKey = () => sessionStorage.getItem(KEY) ?? "";

export function keepApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** An address below the page's own, so that the page also works behind a proxy that adds a prefix. */
export const address = (path) => new URL(path, document.baseURI).href;

async function request(path, { body, signal } = {}) {
  const headers = apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const options = { method: body ? "POST" : "GET", headers, signal, cache: "no-store", credentials: "same-origin" };
  if (body) options.body = JSON.stringify(body);
  try {
    return await fetch(address(path), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running, and is the network up?");
  }
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  let said = text;
  try {
    const answer = JSON.parse(text);
    said = answer.error?.message ?? answer.message ?? answer.detail ?? answer.error ?? text;
  } catch {
    // Not JSON: a proxy's own page, perhaps.
  }
  if (typeof said !== "string") said = JSON.stringify(said);
  const message = said.trim().slice(0, 500) || response.statusText || "no reason given";
  return new ApiError(message, { status: response.status, retryAfter: seconds(response.headers.get("Retry-After")) });
}

/** Retry-After holds seconds or a date (RFC 9110, 10.2.3). */
function seconds(said) {
  if (!said) return null;
  const found = /^\d+$/.test(said.trim()) ? Number(said) : (Date.parse(said) - Date.now()) / 1000;
  return Number.isFinite(found) ? Math.max(0, Math.ceil(found)) : null;
}

/** The object that the server answers. Throws ApiError. */
export async function ask(path, options) {
  const response = await request(path, options);
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** Whether requests are taken, and if not, why: {ready, reason}. */
export async function readiness() {
  const response = await request("ready");
  const answer = await response.json().catch(() => ({}));
  return { ready: response.ok, reason: answer.reason ?? `status ${response.status}` };
}

/** The events of a streamed answer, parsed, until [DONE]. Throws ApiError for a refusal or a stream that breaks off. */
export async function* stream(path, options) {
  const response = await request(path, options);
  if (!response.ok) throw await refusal(response);
  for await (const data of lines(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    const { error } = event;
    if (error) throw new ApiError(error.message ?? String(error), { status: Number(error.code) || 500 });
    yield event;
  }
  throw new ApiError("The connection broke off before the answer was complete.");
}

async function* lines(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      let read;
      try {
        read = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The connection broke off before the answer was complete.");
      }
      if (read.done) return;
      const found = (rest + decoder.decode(read.value, { stream: true })).split(/\r?\n/);
      rest = found.pop();
      for (const line of found) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
