// Lay tokens over the text that they make.

/**
 * Text and tokens do not arrive in step: the server holds text back while it might be the start of a stop string, cuts
 * a stop string off, and gives several tokens for one character. The text is what counts; every piece of it is shown
 * once, with the tokens that made it.
 */
export class Aligner {
  constructor() {
    this.text = "";
    this.waiting = [];
    this.placed = 0;
  }

  /** Text that no token covers yet. */
  get rest() {
    return this.text.slice(this.placed);
  }

  /** Add text and tokens ({text, logprob, top}); returns the pieces that are settled: [{text, tokens}]. */
  push(text, tokens, last = false) {
    this.text += text;
    this.waiting.push(...tokens);
    const pieces = [];
    const settle = (length, count) => {
      pieces.push({ text: this.text.substr(this.placed, length), tokens: this.waiting.splice(0, count) });
      this.placed += length;
    };
    while (this.waiting.length) {
      const bare = this.waiting.findIndex((token) => token.text !== "");
      const head = this.waiting[bare]?.text;
      if (head === undefined) break;
      if (this.rest.startsWith(head)) settle(head.length, bare + 1);
      else if (head.startsWith(this.rest) && !last) break;
      else if (head.startsWith(this.rest) && this.rest) settle(this.rest.length, bare + 1);
      else if (!this.resume(settle, bare + 1)) break;
    }
    if (last && this.waiting.length) settle(this.rest.length, this.waiting.length);
    return pieces;
  }

  /** Tokens that are not in the text as they stand end where a later one is found again. */
  resume(settle, first) {
    for (let count = first; count < this.waiting.length; count += 1) {
      const found = this.waiting[count].text ? this.rest.indexOf(this.waiting[count].text) : -1;
      if (found > 0 && found <= 16 * count) {
        settle(found, count);
        return true;
      }
    }
    return false;
  }
}

/** The tokens of an event of either kind of stream. */
export function tokensOf(choice) {
  const { content, tokens, token_logprobs: logprobs, top_logprobs: top } = choice.logprobs ?? {};
  if (content) {
    return content.map((one) => ({
      text: one.token,
      logprob: one.logprob,
      top: sorted((one.top_logprobs ?? []).map((other) => [other.token, other.logprob])),
    }));
  }
  return (tokens ?? []).map((text, place) => ({
    text,
    logprob: logprobs?.[place] ?? null,
    top: sorted(Object.entries(top?.[place] ?? {})),
  }));
}

const sorted = (pairs) => pairs.sort((one, other) => other[1] - one[1]);

/** 0 to 4, from unlikely to likely. */
export function bin(logprob) {
  return [0.05, 0.2, 0.5, 0.9].filter((edge) => Math.exp(logprob) >= edge).length;
}

export function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  if (share < 0.01) return "below 0.01 %";
  return `${share >= 99.95 ? Math.min(share, 100).toFixed(0) : share.toPrecision(share < 1 ? 2 : 3)} %`;
}

/** A token's text with its blanks made visible. */
export function visible(text) {
  if (text === "") return "(part of a character)";
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}
