// A table's page: all its cells, loaded when they are first asked for; search, filters, order, pages of rows, a map.
// Without this script the page shows the largest figures.
"use strict";
(() => {
  const { make, count, called } = prdp;
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const figure = (x, name) => prdp.figure(facts, x, name);
  const body = document.querySelector("#cells tbody");
  const heads = [...document.querySelectorAll("#cells thead th")];
  let axes = null, columns = null, loading = null;
  let order = null, sorted = { by: heads.length - 4, down: true }, chosen = false, page = 0;

  const load = async () => { ({ axes, columns } = await prdp.table(facts, say)); axes.forEach((_, a) => { filters[a] ||= []; }); };
  const ready = () => loading ||= load().then(() => say(first)).catch((error) => {
    loading = null;
    say(`The file ${error.message} beside this page cannot be read.`);
    throw error;
  });

  // Rows

  function show() {
    const start = page * facts.shown, here = [...order.subarray(start, start + facts.shown)];
    const rows = here.map((cell) => prdp.row(columns, cell)), bar = prdp.bars(rows);
    body.replaceChildren(...rows.map((row, i) => make("tr", {},
      ...axes.map((axis, a) => {
        const key = columns.keys[a][here[i]], name = axis.names[key];
        return name ? make("td", {}, `${name} `, make("span", { class: "code" }, axis.codes[key])) : make("td", {}, axis.codes[key]);
      }),
      make("td", { class: "n", "data-of": facts.unit }, figure(row.value)),
      prdp.intervalOf(facts, row),
      make("td", { class: "n" }, figure(row.standard_error, "standard_error")),
      make("td", {}, bar(row)))));
    const last = Math.min(start + facts.shown, order.length);
    if (facts.adds) add();
    say(order.length ? `Cells ${count(start + 1)} to ${count(last)} of ${count(order.length)}` : "No cell meets the search and the filters.");
    remember();
    save.disabled = !order.length;
    back.disabled = page === 0;
    forth.disabled = last >= order.length;
    heads.forEach((head, i) => {
      if (sorted.by === i) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  // Reconciled cells add up: what those that are chosen come to.
  function add() {
    let sum = 0;
    for (const cell of order) sum += columns.value[cell];
    document.getElementById("together").replaceChildren(`${order.length < facts.cells ? "These" : "All"} ${count(order.length)} cells together: `,
      make("strong", {}, figure(sum)), ` ${facts.unit}.`);
  }

  // The cells that meet search and filters; those that the words name best come first, unless a column was chosen.
  const select = () => prdp.queries(search.value).some(selected);

  function selected(query) {
    const kept = axes.map((axis, a) => Uint8Array.from(axis.codes, (_, i) => filters[a].every((filter) => filter.keeps(i)) ? 1 : 0));
    const { all, axes: met } = prdp.met(axes, query);
    const cells = new Uint32Array(facts.cells), points = all ? new Float64Array(facts.cells) : null;
    let size = 0;
    for (let cell = 0; cell < facts.cells; cell++) {
      let inside = 1, mask = 0;
      for (let a = 0; a < axes.length; a++) {
        const key = columns.keys[a][cell];
        inside &= kept[a][key];
        mask |= met[a].masks[key];
        if (points) points[cell] += met[a].scores[key];
      }
      if (inside && mask === all) cells[size++] = cell;
    }
    order = cells.subarray(0, size);
    const by = sorted.by < axes.length ? columns.keys[sorted.by]
      : [columns.value, columns.lower, columns.standard_error][sorted.by - axes.length];
    const sign = sorted.down ? -1 : 1, first = chosen ? new Float64Array(facts.cells) : points || atHome();
    order.sort((a, b) => first[b] - first[a] || sign * (by[a] - by[b]) || a - b);
    return size > 0;
  }

  // Cells of the reader's place: 1 or, where they tell more of it than another level does, more.
  function atHome() {
    const points = new Float64Array(facts.cells), codes = prdp.here()?.codes || {};
    axes.forEach((axis, a) => [axis, ...axis.groups].forEach(({ level, codes: listed, of }) => {
      const key = level in codes ? listed.indexOf(codes[level]) : -1;
      if (key >= 0) for (let cell = 0; cell < facts.cells; cell++) points[cell] += (of ? of[columns.keys[a][cell]] : columns.keys[a][cell]) === key ? 1 : 0;
    }));
    return points;
  }

  // The table opens with the reader's place, where there is one; a large table is loaded when that is asked for.
  function withHome() {
    const home = prdp.here(), line = make("p", { id: "home" });
    if (!home) return;
    const open = async () => {
      await refresh();
      line.replaceChildren(atHome().some((x) => x > 0) ? `${home.name} comes first. ` : `${home.name} is not in this table. `,
        make("button", { type: "button", onclick: () => { prdp.stay(null); line.remove(); refresh(); } }, "Forget my place"));
    };
    document.getElementById("controls").append(line);
    if (facts.cells <= facts.part) open();
    else line.append(make("button", { type: "button", onclick: open }, `Open with ${home.name}`));
  }

  async function refresh(turn = 0) {
    await ready();
    if (turn === 0) { page = 0; select(); } else { if (!order) select(); page += turn; }
    page = Math.max(0, Math.min(page, Math.ceil(order.length / facts.shown) - 1));
    show();
  }

  // The address: find, level=code of filters, order (− first: the largest first), page; map, and map.level=code.
  const NAMES = () => [...axes.map((axis) => axis.level), "value", "lower", "standard_error"];
  let mapped = null;

  function remember() {
    const pairs = [["find", search.value.trim()], ...filters.flat().map(({ level, codes, list }) => [level, codes[list.value] ?? ""])];
    if (chosen) pairs.push(["order", `${sorted.down ? "-" : ""}${NAMES()[sorted.by]}`]);
    if (page) pairs.push(["page", page + 1]);
    prdp.address([...pairs, ...(mapped ? mapped.view() : [])].filter(([, value]) => value !== ""));
  }

  async function recall() {
    const view = prdp.chosen();
    if (!view.size) return;
    await ready();
    if (axes.some((axis) => [axis, ...axis.groups].some(({ level }) => view.has(level)))) await openFilters();
    search.value = view.get("find") || "";
    filters.flat().forEach(({ level, codes, list }) => { list.value = view.has(level) && codes.includes(view.get(level)) ? codes.indexOf(view.get(level)) : ""; });
    filters.forEach((_, a) => narrow(a));
    const by = NAMES().indexOf((view.get("order") || "").replace(/^-/, ""));
    chosen = by >= 0;
    if (chosen) sorted = { by, down: view.get("order").startsWith("-") };
    const section = document.getElementById("map"), onMap = [...view].filter(([name]) => /^map/.test(name));
    if (section && onMap.length) { await showMap(section); mapped.set(view); }
    page = 0; select();
    page = Math.max(0, Math.min(Number(view.get("page") || 1), Math.ceil(order.length / facts.shown)) - 1);
    show();
    (onMap.length ? section : document.getElementById("table")).scrollIntoView();
  }

  const sortBy = (column) => {
    sorted = { by: column, down: sorted.by === column ? !sorted.down : column >= heads.length - 4 };
    chosen = true;
    return refresh();
  };

  // Controls

  const status = make("p", { role: "status" });
  const say = (text) => { status.textContent = text; };
  const first = `Cells 1 to ${count(Math.min(facts.shown, facts.cells))} of ${count(facts.cells)}`;
  const search = make("input", { type: "search", placeholder: "a name or a code" });
  let typing = null;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(refresh, 100); });
  const back = make("button", { type: "button", onclick: () => refresh(-1), disabled: true }, "Previous");
  const forth = make("button", { type: "button", onclick: () => refresh(1), disabled: facts.cells <= facts.shown }, "Next");
  const save = make("button", { type: "button", onclick: async () => { await ready(); if (!order) select(); prdp.download({ facts, axes, columns }, order); } },
    "Download these rows (CSV)");
  const filters = [];

  const options = (codes, names) => codes.map((code, i) => make("option", { value: i }, names[i] ? `${names[i]} (${code})` : code));

  function choice(label, codes, names, changed, all = "All") {
    const list = make("select", { onchange: changed }, ...(all ? [make("option", { value: "" }, all)] : []), ...options(codes, names));
    return [make("label", {}, label, list), list];
  }

  // Filters of one key narrow each other: fine codes are those of the coarse one that was chosen, and it is theirs.
  async function withFilters(box) {
    await ready();
    axes.forEach((axis, a) => {
      const own = axis.codes.length > 1 ? [{ ...axis, of: axis.codes.map((_, i) => i) }] : [];
      filters[a] = [...axis.groups, ...own].filter((each) => each.codes.length <= 5000).map((each) => {
        const [labelled, list] = choice(each.label, each.codes, each.names, () => { narrow(a); refresh(); });
        box.append(labelled);
        return { list, level: each.level, codes: each.codes, of: each.of, all: [...list.options], keeps: (i) => list.value === "" || each.of[i] === Number(list.value) };
      });
    });
  }

  function narrow(a) {
    filters[a].forEach((filter) => {
      const others = filters[a].filter((other) => other !== filter), left = new Set();
      axes[a].codes.forEach((_, i) => { if (others.every((other) => other.keeps(i))) left.add(String(filter.of[i])); });
      const value = filter.list.value;
      filter.list.replaceChildren(...filter.all.filter((option) => option.value === "" || left.has(option.value)));
      filter.list.value = value;
    });
  }

  let openFilters = null;

  function controls() {
    const box = make("div", { class: "controls" }, make("label", {}, "Search", search));
    const more = make("button", { type: "button" }, "Show filters");
    openFilters = async () => { if (more.isConnected) { more.remove(); await withFilters(box); } };
    more.addEventListener("click", async () => { await openFilters(); await refresh(); box.querySelector("select")?.focus(); });
    box.append(more);
    document.getElementById("controls").append(box, status);
    document.getElementById("cells").parentElement.after(make("div", { class: "controls pager" }, back, forth, save));
    say(first);
    heads.slice(0, -1).forEach((head, i) => {
      const text = head.textContent;
      head.replaceChildren(make("button", { type: "button", onclick: () => sortBy(i) }, text));
    });
  }

  // The map: cells whose interval holds 0 are hatched; the others have shades that differ by more than their errors.

  const NS = "http://www.w3.org/2000/svg";
  const drawn = (name, attributes, ...inside) => {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };

  function outlines(boundaries) {
    const lines = boundaries.arcs.map((steps) => {
      const points = [];
      for (let i = 0, x = 0, y = 0; i < steps.length; i += 2) {
        x += steps[i]; y += steps[i + 1];
        points.push(`${x / boundaries.grid} ${y / boundaries.grid}`);
      }
      return points;
    });
    const line = (arc) => arc >= 0 ? lines[arc] : [...lines[~arc]].reverse();
    return Object.entries(boundaries.shapes).map(([code, rings]) =>
      [code, rings.map((ring) => `M${ring.flatMap(line).join("L")}Z`).join("")]);
  }

  // As `classes` in figures.py: parts of the rows, of which neighbours whose middle intervals meet become one.
  const HALVES = [0, 1 / 2, 3 / 4, 7 / 8, 15 / 16, 1], FIFTHS = [0, 1 / 5, 2 / 5, 3 / 5, 4 / 5, 1];
  function classes(rows, ends) {
    const ordered = [...rows].sort((a, b) => a.value - b.value), rank = (end) => Math.floor(ordered.length * end);
    const found = [0, 1, 2, 3, 4].map((i) => ordered.slice(rank(ends[i]), rank(ends[i + 1]))).filter((each) => each.length);
    const middle = (group, name) => group.map((each) => each[name]).sort((a, b) => a - b)[Math.floor(group.length / 2)];
    for (let i = 0; i + 1 < found.length;) {
      if (middle(found[i], "upper") < middle(found[i + 1], "lower")) i++;
      else { found.splice(i, 2, [...found[i], ...found[i + 1]]); i = Math.max(0, i - 1); }
    }
    return found;
  }
  const SHADES = [[], [3], [1, 4], [0, 2, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4]];

  const showMap = (section) => drawing ||= map(section);
  let drawing = null;

  async function map(section) {
    const level = section.dataset.map;
    section.querySelector("button")?.remove();
    const told = make("p", { role: "status" }, "Loading the map …");
    section.append(told);
    const [, boundaries] = await Promise.all([ready(), prdp.boundaries(level)]);
    const which = axes.findIndex((axis) => axis.level === level), axis = axes[which];
    const hatch = drawn("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      drawn("rect", { width: 5, height: 5, class: "ground" }), drawn("rect", { width: 1.6, height: 5, class: "line" }));
    const svg = drawn("svg", { viewBox: "0 0 975 610", role: "img" }, drawn("defs", {}, hatch)), inside = drawn("g", {});
    const paths = outlines(boundaries).map(([code, d]) => {
      const path = drawn("path", { d, class: "none" }, drawn("title", {}));
      const key = axis.codes.indexOf(code);
      (key < 0 ? svg : inside).append(path);
      return [key, path];
    });
    svg.append(inside);
    const legend = make("ul", { class: "legend" }), beside = make("details", {});
    const without = axis.codes.map((_, i) => i).filter((i) => !(axis.codes[i] in boundaries.shapes));
    let asked = false;
    const redraw = () => { asked = true; draw(); if (!order) select(); remember(); };
    const shown = choice("Shown", ["figures", "relative errors"], [], redraw, null);
    const others = axes.map((each, a) => a === which ? null : choice(each.label, each.codes, each.names, redraw, null));
    mapped = {
      view: () => asked ? [["map", shown[1].value === "1" ? "errors" : "figures"],
        ...others.flatMap((other, a) => other ? [[`map.${axes[a].level}`, axes[a].codes[other[1].value]]] : [])] : [],
      set: (view) => {
        shown[1].value = view.get("map") === "errors" ? 1 : 0;
        others.forEach((other, a) => { if (other && axes[a].codes.includes(view.get(`map.${axes[a].level}`))) other[1].value = axes[a].codes.indexOf(view.get(`map.${axes[a].level}`)); });
        asked = true;
        draw();
      },
    };
    others.forEach((other, a) => { if (other) other[1].value = Math.max(0, axes[a].codes.indexOf(facts.at[axes[a].level])); });
    function draw() {
      const cells = new Map(), relative = shown[1].value === "1";
      for (let cell = 0; cell < facts.cells; cell++) {
        if (others.every((other, a) => !other || columns.keys[a][cell] === Number(other[1].value))) cells.set(columns.keys[which][cell], prdp.row(columns, cell));
      }
      const error = (row) => row.standard_error / Math.abs(row.value);
      const text = (x) => relative ? (x > 10 ? "over 1,000 %" : `${(100 * x).toFixed(1)} %`) : figure(x);
      const said = (row) => relative ? text(error(row)) : `${text(row.value)} (${prdp.interval(facts, row)})${prdp.reading(facts, row) && `, ${prdp.reading(facts, row)}`}`;
      const rows = [...cells.values()].map((row) => relative ? { value: error(row), lower: error(row), upper: error(row) } : row);
      const clear = relative ? rows : rows.filter((row) => prdp.clear(facts, row));
      const groups = classes(clear, relative ? FIFTHS : HALVES), shades = SHADES[groups.length].map((i) => `q${i}`);
      const shade = (row) => !relative && !prdp.clear(facts, row) ? "noise"
        : shades[groups.filter((group, i) => i && (relative ? error(row) : row.value) >= group[0].value).length];
      for (const [key, path] of paths) {
        const row = cells.get(key);
        path.setAttribute("class", row === undefined ? "none" : shade(row));
        path.firstChild.textContent = row === undefined ? "not in the table" : `${called(axis, key)}: ${said(row)}`;
      }
      const lines = without.filter((key) => cells.has(key)).map((key) =>
        make("li", {}, `${called(axis, key)} (${axis.codes[key]}): ${said(cells.get(key))}`));
      beside.hidden = !lines.length;
      beside.open = lines.length <= 12;
      beside.replaceChildren(make("summary", {}, `Not on the map, which has no boundaries for them: ${lines.length}`), make("ul", {}, ...lines));
      const entry = (name, words) => make("li", {}, make("span", { class: name }), words);
      const noise = rows.length - clear.length;
      legend.replaceChildren(
        ...groups.map((group, i) => entry(shades[i], `${text(group[0].value)} to ${text(group.at(-1).value)}: ${count(group.length)}`)),
        ...(noise ? [entry("noise", `not told from 0: ${count(noise)}`)] : []), entry("none", "not in the table"));
      const what = relative ? "Relative errors: the standard error over the figure" : `In ${facts.unit}`;
      svg.setAttribute("aria-label", `Map. ${what}. The same numbers stand in the table below.`);
      told.textContent = relative ? `${what}; each shade is a fifth of the ${count(rows.length)} cells.`
        : `${what}. Shades differ by more than their errors: the middle interval of each lies below that of the next. The legend counts cells.`;
    }
    section.append(make("div", { class: "controls" }, shown[0], ...others.filter(Boolean).map((other) => other[0])), svg, legend, beside);
    const box = inside.getBBox(), edge = 4 + 0.05 * Math.max(box.width, box.height);
    if (box.width && box.width < 700) { // a part of the country: nothing is gained from the rest
      svg.setAttribute("viewBox", [box.x - edge, box.y - edge, box.width + 2 * edge, box.height + 2 * edge].join(" "));
      const size = (box.width + 2 * edge) / 975;
      hatch.setAttribute("patternTransform", `rotate(45) scale(${size})`);
    }
    draw();
  }

  document.addEventListener("DOMContentLoaded", () => {
    controls();
    prdp.address([...prdp.chosen()]);
    window.addEventListener("hashchange", recall);
    const section = document.getElementById("map");
    if (section) withMap(section);
    if (prdp.chosen().size) recall();
    else withHome();
  });

  function withMap(section) {
    section.hidden = false;
    section.append(make("button", { type: "button", onclick: () => showMap(section) }, "Show the map"));
    if (facts.cells <= facts.part && "IntersectionObserver" in window) {
      const seen = new IntersectionObserver((entries) => {
        if (entries.some((entry) => entry.isIntersecting)) { seen.disconnect(); showMap(section); }
      });
      seen.observe(section);
    }
  }
})();
