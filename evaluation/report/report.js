"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PER_PAGE = 10;
  // Of a prompt, so many last characters are open.
  const OPEN = 700;
  const byId = (id) => document.getElementById(id);
  const [taskList, cellList, search, list] = ["task", "cell", "search", "list"].map(byId);
  let page = 0;

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function option(value, text) {
    const made = element("option", "", text);
    made.value = value;
    return made;
  }

  function fillTasks() {
    const titles = new Map(data.cells.map((cell) => [cell.task, cell.title]));
    taskList.replaceChildren(...[...titles].map(([task, title]) => option(task, title)));
  }

  function fillCells() {
    const cells = data.cells.filter((cell) => cell.task === taskList.value);
    const seeds = new Set(cells.map((cell) => cell.seed)).size > 1;
    cellList.replaceChildren(
      ...cells.map((cell) => option(cell.name, `${cell.shots}-shot${seeds ? `, seed ${cell.seed}` : ""}`)),
    );
  }

  function select(name) {
    const cell = data.cells.find((other) => other.name === name);
    if (!cell) return;
    taskList.value = cell.task;
    fillCells();
    cellList.value = name;
    page = 0;
    show();
  }

  function matching(cell) {
    const outcome = document.querySelector("input[name=outcome]:checked").value;
    const words = search.value.trim().toLowerCase();
    return cell.samples.filter((sample) => {
      if (outcome !== "all" && sample.correct !== (outcome === "right")) return false;
      const texts = [sample.prompt, ...sample.choices].map((place) => data.texts[place]);
      return !words || texts.some((text) => text.toLowerCase().includes(words));
    });
  }

  function prompt(sample) {
    const text = data.texts[sample.prompt];
    const parts = [];
    if (sample.omitted) {
      parts.push(element("p", "omitted", `… ${sample.omitted.toLocaleString("en")} characters before this in the file`));
    }
    let start = Math.max(0, text.length - OPEN);
    if (start) {
      // At a word, and never inside a surrogate pair.
      start = text.indexOf(" ", start) + 1 || start;
      const folded = element("details");
      folded.append(element("summary", "", `${start.toLocaleString("en")} earlier characters`));
      folded.append(element("pre", "", text.slice(0, start)));
      parts.push(folded);
    }
    parts.push(element("pre", "prompt", text.slice(start)));
    return parts;
  }

  function choices(sample) {
    const made = element("ol", "choices");
    // From 10 % below the least likely to probability 1, so that every bar has a length.
    const floor = 1.1 * Math.min(...sample.scores, -1e-6);
    sample.choices.forEach((place, index) => {
      const line = element("li");
      line.classList.toggle("is-right", index === sample.right);
      line.classList.toggle("is-chosen", index === sample.chosen);
      const text = element("span", "choice-text", data.texts[place]);
      const alone = sample.choices.length === 1;
      if (index === sample.right) text.append(element("span", "badge right-word", alone ? "answer" : "✓ right answer"));
      if (index === sample.chosen) text.append(element("span", "badge", alone ? "written greedily" : "chosen"));
      const bar = element("div", "bar");
      bar.append(element("div"));
      bar.firstChild.style.width = `${100 * (1 - sample.scores[index] / floor)}%`;
      line.append(text, element("span", "number", sample.scores[index].toFixed(2)), bar);
      made.append(line);
    });
    return made;
  }

  function article(sample) {
    const made = element("article", "sample");
    const title = element("h3", "", `document ${sample.document} `);
    title.append(element("span", sample.correct ? "right-word" : "wrong-word", sample.correct ? "✓ right" : "✗ wrong"));
    made.append(title, ...prompt(sample), choices(sample));
    return made;
  }

  function show() {
    const cell = data.cells.find((other) => other.name === cellList.value);
    if (!cell) return;
    const samples = matching(cell);
    const pages = Math.max(1, Math.ceil(samples.length / PER_PAGE));
    page = Math.min(page, pages - 1);
    byId("found").textContent =
      `${samples.length} of the ${cell.samples.length} documents here; the cell has ${cell.documents}. ` +
      "Numbers are log-likelihoods in nats; a longer bar is likelier, a full one certain.";
    list.replaceChildren(...samples.slice(page * PER_PAGE, (page + 1) * PER_PAGE).map(article));
    byId("page").textContent = `${page + 1} / ${pages}`;
    byId("previous").disabled = page === 0;
    byId("next").disabled = page === pages - 1;
  }

  function turn(step) {
    page += step;
    show();
    byId("found").scrollIntoView();
  }

  taskList.addEventListener("change", () => {
    fillCells();
    page = 0;
    show();
  });
  byId("filter").addEventListener("input", (event) => {
    if (event.target === taskList) return;
    page = 0;
    show();
  });
  byId("filter").addEventListener("submit", (event) => event.preventDefault());
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  for (const link of document.querySelectorAll("a[data-cell]")) {
    link.addEventListener("click", () => select(link.dataset.cell));
  }
  fillTasks();
  fillCells();
  if (data.cells.length) {
    byId("filter").hidden = false;
    byId("pages").hidden = false;
    show();
  }
})();
