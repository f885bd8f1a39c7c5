// The few things that every part of the page does with elements. Text is only ever set as text.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Replace a text area's text as if it were typed, so that the browser's undo brings back what was there. */
export function fill(area, text) {
  area.focus();
  area.select();
  if (!document.execCommand("insertText", false, text) || area.value !== text) area.value = text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Put text on the clipboard; true when it is there. Browsers give the modern way to HTTPS and localhost only. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { value: text, readOnly: true, className: "hidden" });
    const before = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }
}

export function save(name, content) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
