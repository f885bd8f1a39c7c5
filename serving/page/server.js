// Whether the server takes requests, which model it has, and whether it wants a key.

import { ApiError, apiKey, ask, keepApiKey, readiness } from "./api.js";
import { byId, element } from "./dom.js";

const POLL_UNREADY = 1000;
const POLL_READY = 15000;

/** Watches the server for as long as the page is open. */
export class Server {
  /** `recovered` is called when the server is ready after it was not. */
  constructor(recovered) {
    this.recovered = recovered;
    this.ready = false;
    this.models = [];
    this.chat = false;
    this.timer = 0;
    byId("key-form").addEventListener("submit", (event) => this.useKey(event));
    byId("forget-key").addEventListener("click", () => this.forgetKey());
    byId("change-key").addEventListener("click", () => this.askKey("This key is used for every request."));
    byId("model").addEventListener("change", () => this.showContext());
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
  }

  /** Look now, then again and again: often while it is loading or gone, seldom while it is ready. */
  async poll() {
    clearTimeout(this.timer);
    try {
      const { ready, reason } = await readiness();
      const back = ready && !this.ready;
      this.show(ready ? "ready" : "loading", ready ? "ready" : reason);
      if (back) this.recovered();
      // After a restart it may have another model.
      if (back && byId("key-form").hidden) await this.loadModels();
    } catch {
      this.show("gone", "no connection");
    }
    clearTimeout(this.timer);
    if (!document.hidden) this.timer = setTimeout(() => this.poll(), this.ready ? POLL_READY : POLL_UNREADY);
  }

  /** A request found the server not ready, or gone. */
  lost() {
    this.ready = false;
    this.poll();
  }

  show(state, text) {
    this.ready = state === "ready";
    const shown = byId("state");
    if (shown.textContent !== text) shown.textContent = text;
    shown.dataset.state = state;
  }

  async loadModels() {
    try {
      this.models = (await ask("v1/models")).data;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) this.askKey(apiKey() ? "The server does not know this key." : "");
      return;
    }
    const select = byId("model");
    select.replaceChildren(...this.models.map(({ id }) => element("option", { value: id, textContent: id })));
    this.showContext();
    if (this.models[0]) document.title = `${this.models[0].id} · mtnlg`;
    byId("change-key").hidden = !apiKey();
    await this.findChat();
  }

  /** A model has a chat template when the server can lay a message out with it, which costs no generation. */
  async findChat() {
    const body = { model: byId("model").value, messages: [{ role: "user", content: "?" }] };
    this.chat = await ask("tokenize", { body }).then(() => true, () => false);
    byId("mode").hidden = !this.chat;
  }

  /** Tokens that prompt and answer may have together, where the server says so. */
  get context() {
    return this.models.find(({ id }) => id === byId("model").value)?.max_model_len ?? null;
  }

  showContext() {
    byId("context").textContent = this.context ? `context ${this.context} tokens` : "";
  }

  askKey(reason) {
    byId("key-reason").textContent = reason || "This server needs an API key.";
    byId("key-form").hidden = false;
    byId("key").value = "";
    byId("key").focus();
  }

  useKey(event) {
    event.preventDefault();
    keepApiKey(byId("key").value.trim());
    this.reload();
    byId("prompt").focus();
  }

  forgetKey() {
    keepApiKey("");
    this.reload();
  }

  reload() {
    byId("key").value = "";
    byId("key-form").hidden = true;
    byId("change-key").hidden = !apiKey();
    this.lost();
  }
}
