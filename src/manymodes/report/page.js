"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map(); // chart element -> the vega-embed results drawn into it
  const picked = page.experiments.map(() => ({ run: 0, method: "" }));
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const say = (text) => { document.getElementById("live").textContent = text; };
  const theme = () => (dark.matches ? "dark" : "light");

  // ---- data ------------------------------------------------------------------------------------
  const rowsOf = (columns) => {
    const names = Object.keys(columns);
    return names.length ? columns[names[0]].map((_, i) => Object.fromEntries(names.map((n) => [n, columns[n][i]]))) : [];
  };
  const paletteOf = (experiment, name) => {
    if (name !== "modes") return experiment.palettes[name];
    const count = experiment.runs[picked[page.experiments.indexOf(experiment)].run].modes;
    const whole = experiment.palettes.modes;
    return Object.fromEntries(Object.entries(whole).map(([key, list]) => [key, list.slice(0, count)]));
  };
  const columnsOf = (element) => {
    const number = Number(element.dataset.experiment), experiment = page.experiments[number];
    const name = element.dataset.chart;
    const source = experiment.charts[name].each ? experiment.runs[picked[number].run].data : experiment.data;
    return source[name] || {};
  };

  // ---- charts ----------------------------------------------------------------------------------
  const settings = (experiment, chart) => {
    const config = structuredClone(page.themes[theme()]);
    const palette = chart.palette && paletteOf(experiment, chart.palette);
    if (palette) Object.assign(config.range, { category: palette[theme()], ordinal: palette[theme()], symbol: palette.shapes });
    return config;
  };
  const restrict = (node, names) => { // a run with fewer modes uses fewer colours
    if (Array.isArray(node)) node.forEach((item) => restrict(item, names));
    else if (node && typeof node === "object") {
      for (const [key, value] of Object.entries(node)) {
        if (key === "domain" && Array.isArray(value) && value[0] === "mode 1") node[key] = names;
        else restrict(value, names);
      }
    }
  };
  async function draw(element) {
    const number = Number(element.dataset.experiment), experiment = page.experiments[number];
    const chart = experiment.charts[element.dataset.chart];
    const rows = rowsOf(columnsOf(element));
    for (const old of views.get(element) || []) old.finalize();
    views.set(element, []);
    const figure = element.closest("figure");
    figure.hidden = rows.length === 0;
    if (!rows.length) { element.replaceChildren(); return; }
    const panels = chart.panels ? [...new Set(rows.map((row) => row.panel))] : [null];
    const places = chart.panels ? panels.map((name) => panelFor(name)) : [element];
    if (chart.panels) element.replaceChildren(...places.map((place) => place.parentElement));
    for (const [n, place] of places.entries()) {
      const spec = structuredClone(chart.spec);
      if (chart.panels) spec.height = "container";
      if (chart.palette === "modes") restrict(spec, paletteOf(experiment, "modes").names);
      spec.datasets = { rows: panels[n] === null ? rows : rows.filter((row) => row.panel === panels[n]) };
      spec.config = settings(experiment, chart);
      const result = await window.vegaEmbed(place, spec, {
        renderer: chart.panels ? "canvas" : "svg", mode: "vega-lite", tooltip: { theme: "custom" },
        actions: chart.panels ? false : { export: true, source: false, compiled: false, editor: false },
      });
      views.get(element).push(result);
      if (chart.palette === "methods") mark(result.view, picked[number].method);
    }
    element.dataset.drawn = theme();
  }
  const panelFor = (name) => {
    const box = document.createElement("div"), title = document.createElement("h4"), place = document.createElement("div");
    box.className = "panel";
    title.textContent = name;
    box.append(title, place);
    return place;
  };
  const mark = (view, method) => { try { view.signal("picked", method).runAsync(); } catch { /* a chart without methods */ } };
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "500px" });
  const redraw = (test) => all(".chart").filter(test).forEach((element) => {
    if (views.has(element)) draw(element); else near.observe(element);
  });

  // ---- legends ---------------------------------------------------------------------------------
  const PATHS = {
    "circle": "M1 0A1 1 0 1 1-1 0A1 1 0 1 1 1 0Z", "square": "M-.9-.9H.9V.9H-.9Z", "triangle-up": "M0-1 1 .8H-1Z",
    "triangle-down": "M0 1-1-.8H1Z", "triangle-right": "M1 0-.8 1V-1Z", "triangle-left": "M-1 0 .8-1V1Z",
    "diamond": "M0-1.1 1.1 0 0 1.1-1.1 0Z", "cross": "M-.35-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
  };
  const swatch = (palette, n) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("class", "swatch");
    svg.setAttribute("viewBox", "-1.3 -1.3 2.6 2.6");
    svg.setAttribute("aria-hidden", "true");
    svg.style.setProperty("--l", palette.light[n]);
    svg.style.setProperty("--d", palette.dark[n]);
    path.setAttribute("d", PATHS[palette.shapes[n]]);
    svg.append(path);
    return svg;
  };
  function legend(element) {
    const number = Number(element.dataset.experiment), experiment = page.experiments[number];
    const palette = paletteOf(experiment, element.dataset.palette);
    element.replaceChildren(...palette.names.map((name, n) => {
      const methods = element.dataset.palette === "methods";
      const item = document.createElement(methods ? "button" : "span");
      item.append(swatch(palette, n), document.createTextNode(name));
      if (methods) {
        item.type = "button";
        item.setAttribute("aria-pressed", "false");
        item.addEventListener("click", () => pick(number, picked[number].method === name ? "" : name));
      }
      return item;
    }));
  }
  function pick(number, method) {
    picked[number].method = method;
    for (const element of all(`.legend[data-palette=methods][data-experiment="${number}"]`)) {
      element.classList.toggle("dimmed", method !== "");
      for (const button of all("button", element)) button.setAttribute("aria-pressed", String(button.textContent === method));
    }
    for (const [element, results] of views) {
      if (Number(element.dataset.experiment) === number) results.forEach((result) => mark(result.view, method));
    }
    say(method ? `${method} is set off in the charts` : "All methods are shown alike");
  }

  // ---- one run after another -------------------------------------------------------------------
  function fillSeeds(form) {
    const experiment = page.experiments[Number(form.dataset.experiment)];
    const methods = [...new Set(experiment.runs.map((run) => run.method))];
    const method = methods[Number(form.elements.method.value)];
    const kept = form.elements.seed.selectedOptions[0]?.textContent;
    form.elements.seed.replaceChildren(...experiment.runs.flatMap((run, n) => {
      if (run.method !== method) return [];
      const option = document.createElement("option");
      option.value = String(n);
      option.textContent = String(run.seed);
      option.selected = option.textContent === kept;
      return [option];
    }));
  }
  function pickRun(form) {
    const number = Number(form.dataset.experiment);
    picked[number].run = Number(form.elements.seed.value);
    for (const other of all(`.picker[data-experiment="${number}"]`)) {
      if (other === form) continue;
      other.elements.method.value = form.elements.method.value;
      fillSeeds(other);
      other.elements.seed.value = form.elements.seed.value;
    }
    all(`.legend[data-experiment="${number}"]`).filter((element) => element.dataset.palette === "modes").forEach(legend);
    emptiness(number);
    redraw((element) => Number(element.dataset.experiment) === number && page.experiments[number].charts[element.dataset.chart].each);
    for (const details of all(".numbers[open]")) numbers(details);
  }

  function emptiness(number) {
    for (const note of all(`.experiment[data-experiment="${number}"] .empty`)) {
      const charts = page.experiments[number].charts;
      const mine = all(".chart", note.closest("section")).filter((element) => charts[element.dataset.chart].each);
      note.hidden = mine.some((element) => Object.keys(columnsOf(element)).length > 0);
    }
  }

  // ---- tables ----------------------------------------------------------------------------------
  function sort(head) {
    const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
    const words = head.dataset.kind === "text";
    const up = head.getAttribute("aria-sort") === (words ? "ascending" : "descending") ? (words ? -1 : 1) : (words ? 1 : -1);
    const key = (row) => words ? row.cells[column].textContent.trim() : row.cells[column].dataset.value;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return up * (words ? x.localeCompare(y) : Number(x) - Number(y));
    });
    body.append(...rows);
    for (const other of head.parentElement.cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
    say(`Sorted by ${head.textContent.trim()}, ${up > 0 ? "ascending" : "descending"}`);
  }
  function numbers(details) {
    const columns = columnsOf(details.closest("figure").querySelector(".chart"));
    const names = Object.keys(columns), table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const name of names) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const body = table.createTBody();
    for (let i = 0; i < Math.min(2000, (columns[names[0]] || []).length); i += 1) {
      const row = body.insertRow();
      for (const name of names) row.insertCell().textContent = String(columns[name][i] ?? "");
    }
    details.lastElementChild.replaceChildren(table);
  }
  async function copy(button) {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea"); // no permission, or an old browser on file://
      area.value = text;
      area.className = "hidden";
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    const label = button.firstChild;
    label.textContent = "Copied";
    button.classList.add("done");
    say("Command copied");
    setTimeout(() => { label.textContent = "Copy"; button.classList.remove("done"); }, 1600);
  }

  // ---- wiring ----------------------------------------------------------------------------------
  all(".comparison th button").forEach((button) => button.addEventListener("click", () => sort(button.closest("th"))));
  all(".copy").forEach((button) => button.addEventListener("click", () => copy(button)));
  all(".numbers").forEach((details) => details.addEventListener("toggle", () => { if (details.open) numbers(details); }));
  all(".picker").forEach((form) => {
    fillSeeds(form);
    picked[Number(form.dataset.experiment)].run = Number(form.elements.seed.value);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.elements.method.addEventListener("change", () => { fillSeeds(form); pickRun(form); });
    form.elements.seed.addEventListener("change", () => pickRun(form));
  });
  page.experiments.forEach((_, number) => emptiness(number));
  all(".legend[data-palette]").forEach(legend);
  all(".chart").forEach((element) => near.observe(element));
  dark.addEventListener("change", () => redraw((element) => views.has(element)));
  window.addEventListener("beforeprint", () => all(".chart").forEach((element) => { if (!views.has(element)) draw(element); }));
})();
