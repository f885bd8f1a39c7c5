// How likely a token was and what else was likely: shown beside it on hover, focus or tap.

import { byId, element } from "./dom.js";
import { percent, visible } from "./tokens.js";

const HIDE_AFTER = 150;

/** Follow pointer and focus over the tokens in `container`; `pieceOf(span)` says what a token's element shows. */
export function followTokens(container, pieceOf) {
  const panel = byId("detail");
  let shown = null;
  let timer = 0;

  function place() {
    if (!shown) return;
    const box = shown.getClientRects()[0] ?? shown.getBoundingClientRect();
    const { width, height } = panel.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8));
    const below = box.bottom + 6 + height <= window.innerHeight;
    panel.style.left = `${left}px`;
    panel.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - height - 6)}px`;
  }

  function show(span) {
    clearTimeout(timer);
    if (!span || span === shown) return;
    shown?.classList.remove("active");
    shown = span;
    span.classList.add("active");
    panel.replaceChildren(...contents(pieceOf(span)));
    panel.hidden = false;
    place();
  }

  function hide() {
    clearTimeout(timer);
    shown?.classList.remove("active");
    shown = null;
    panel.hidden = true;
  }

  const tokenAt = (event) => event.target.closest?.(".token");
  const focused = () => container.contains(document.activeElement) && document.activeElement.closest(".token");
  const leave = () => {
    clearTimeout(timer);
    timer = setTimeout(() => (focused() ? show(focused()) : hide()), HIDE_AFTER);
  };
  container.addEventListener("pointerover", (event) => tokenAt(event) && show(tokenAt(event)));
  container.addEventListener("pointerout", leave);
  panel.addEventListener("pointerenter", () => clearTimeout(timer));
  panel.addEventListener("pointerleave", leave);
  container.addEventListener("focusin", (event) => {
    const token = tokenAt(event);
    if (!token) return;
    show(token);
    byId("token-status").textContent = spoken(pieceOf(token));
  });
  container.addEventListener("focusout", leave);
  container.addEventListener("keydown", (event) => {
    const token = tokenAt(event);
    const next = token && neighbour(token, event.key);
    if (!next) return;
    event.preventDefault();
    token.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  window.addEventListener("scroll", place, { passive: true, capture: true });
  window.addEventListener("resize", place);
  return { hide, shown: () => shown !== null };
}

function neighbour(token, key) {
  const all = [...token.parentElement.querySelectorAll(".token")];
  const place = all.indexOf(token);
  const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: all.length - 1 };
  return key in moves ? all[moves[key]] : undefined;
}

function contents({ text, tokens, ending }) {
  const [token] = tokens;
  const title = ending ? "After the text" : `“${visible(text)}”`;
  if (tokens.length > 1) {
    const rows = tokens.map((one) => row(visible(one.text), one.logprob, false));
    const sum = ending ? "tokens that make no text" : `${tokens.length} tokens make this together`;
    return [element("p", {}, element("strong", { textContent: title })), element("p", { textContent: sum }),
      element("ol", {}, ...rows)];
  }
  if (token.logprob === null) {
    return [element("p", {}, element("strong", { textContent: title }), " probability not given")];
  }
  const rank = token.top.findIndex(([other]) => other === token.text);
  const head = element("p", {}, element("strong", { textContent: title }), ` ${percent(token.logprob)}`);
  const order = rank < 0 ? "not among the likeliest" : `rank ${rank + 1}`;
  const log = `log-probability ${token.logprob.toFixed(3)}, ${order}`;
  const rows = token.top.map(([other, logprob]) => row(visible(other), logprob, other === token.text));
  return [head, element("p", { className: "help", textContent: log }), element("ol", {}, ...rows)];
}

function row(text, logprob, chosen) {
  const share = element("span", { className: "share" });
  share.style.width = `${logprob === null ? 0 : Math.max(1, 100 * Math.exp(logprob))}%`;
  return element(
    "li",
    { className: chosen ? "chosen" : "" },
    element("span", { className: "other", textContent: text }),
    element("span", { className: "number", textContent: logprob === null ? "" : percent(logprob) }),
    element("span", { className: "shares" }, share),
  );
}

function spoken({ tokens, ending }) {
  const [token] = tokens;
  if (ending) return "end of the answer";
  if (token.logprob === null) return "";
  const others = token.top.filter(([other]) => other !== token.text).slice(0, 3);
  const likely = others.map(([other, logprob]) => `${visible(other)} ${percent(logprob)}`).join(", ");
  return `${percent(token.logprob)}${likely ? `; else ${likely}` : ""}`;
}
