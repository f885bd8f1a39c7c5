"use strict";
(() => {
  const cells = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const [stageList, datasetList, ruleList, search, list] = ["stage", "dataset", "rule", "search", "list"].map(byId);
  const ALL = "";
  const KEPT = "kept";

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Options of a list, of which the one chosen before stays chosen where it still is one.
  function fill(control, values, all) {
    const before = control.value;
    const options = [...(all ? [[ALL, all]] : []), ...values.map((value) => [value, value])];
    control.replaceChildren(
      ...options.map(([value, text]) => {
        const made = element("option", "", text);
        made.value = value;
        return made;
      }),
    );
    if (options.some(([value]) => value === before)) control.value = before;
  }

  const unique = (values) => [...new Set(values)];

  function matching() {
    const words = search.value.trim().toLowerCase();
    return cells
      .filter((cell) => cell.stage === stageList.value && [ALL, cell.dataset].includes(datasetList.value))
      .flatMap((cell) => cell.samples)
      .filter(([id, rule, detail, text]) => {
        if (ruleList.value !== ALL && ruleList.value !== (rule || KEPT)) return false;
        return !words || [id, detail, text].some((part) => part.toLowerCase().includes(words));
      });
  }

  function article([id, rule, detail, text, more]) {
    const made = element("article", "sample");
    const title = element("h3", "", `${id} `);
    title.append(element("span", rule ? "wrong-word" : "right-word", rule ? `✗ ${rule}` : "✓ kept"));
    made.append(title);
    if (detail) made.append(element("p", "from", detail));
    made.append(element("pre", "text", text));
    if (more) made.append(element("p", "from", `… ${more.toLocaleString("en")} more characters${rule ? " or more" : ""}`));
    return made;
  }

  function fillRules() {
    const here = cells.filter((cell) => cell.stage === stageList.value);
    fill(datasetList, unique(here.map((cell) => cell.dataset)), "all");
    const rules = here.flatMap((cell) => cell.samples).map(([, rule]) => rule || KEPT);
    fill(ruleList, unique(rules).sort((one, other) => (other === KEPT) - (one === KEPT)), "all");
  }

  function show() {
    const samples = matching();
    byId("found").textContent = `${samples.length} document${samples.length === 1 ? "" : "s"}`;
    list.replaceChildren(...samples.map(article));
  }

  byId("filter").addEventListener("input", (event) => {
    if (event.target === stageList) fillRules();
    show();
  });
  byId("filter").addEventListener("submit", (event) => event.preventDefault());
  if (cells.length) {
    fill(stageList, unique(cells.map((cell) => cell.stage)));
    fillRules();
    byId("filter").hidden = false;
    show();
  }
})();
