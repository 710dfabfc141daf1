// A table's page: all cells, loaded from scripts beside it when they are first asked for; search, filters, order, pages
// of rows, and a map. Without this script the page shows the first cells and the largest figures.
"use strict";
const prdp = (() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const home = new URL("../", document.baseURI).href;
  const body = document.querySelector("#cells tbody");
  const heads = [...document.querySelectorAll("#cells thead th")];
  const parts = [];
  let axes = null, boundaries = null, loading = null;
  let columns = null, order = null, sorted = { by: null, down: true }, page = 0;

  const make = (tag, attributes = {}, ...inside) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "class") element.className = value;
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null) element.setAttribute(name, value);
    }
    element.append(...inside);
    return element;
  };

  const script = (path) => new Promise((resolve, reject) => {
    document.head.append(make("script", { src: home + path, onload: resolve, onerror: () => reject(new Error(path)) }));
  });

  // Columns as packed.py writes them.
  const bytes = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const unpacked = (column, count) => {
    const [kind, first, second] = column;
    if (kind === "c") return new Float64Array(count).fill(Number(first));
    if (kind === "d") return Float64Array.from(bytes(second), (i) => Number(first[i]));
    const data = new DataView(bytes(first).buffer);
    return kind === "i" ? Float64Array.from({ length: count }, (_, i) => data.getInt32(4 * i, true))
      : Float64Array.from({ length: count }, (_, i) => data.getFloat64(8 * i, true));
  };

  async function load() {
    await script(`data/${facts.name}/keys.js`);
    for (let i = 0; i < facts.parts; i++) {
      say(`Loading part ${i + 1} of ${facts.parts} …`);
      await script(`data/${facts.name}/${i}.js`);
    }
    const count = facts.cells;
    columns = { value: new Float64Array(count), lower: new Float64Array(count), upper: new Float64Array(count),
      standard_error: new Float64Array(count), keys: axes.map(() => new Uint32Array(count)) };
    parts.forEach((part, number) => {
      const first = number * facts.part, size = Math.min(facts.part, count - first);
      const value = unpacked(part.value, size);
      columns.value.set(value, first);
      columns.standard_error.set(unpacked(part.standard_error, size), first);
      for (const name of ["lower", "upper"]) columns[name].set(unpacked(part[name], size).map((x, i) => x + value[i]), first);
      const cells = facts.listed ? unpacked(part.cell, size) : null;
      for (let i = 0; i < size; i++) {
        let rest = cells ? cells[i] : first + i;
        for (let a = axes.length - 1; a >= 0; a--) {
          const width = axes[a].codes.length;
          columns.keys[a][first + i] = rest % width;
          rest = Math.floor(rest / width);
        }
      }
    });
    parts.length = 0;
  }
  const ready = () => loading ||= load().then(() => say(first)).catch((error) => {
    loading = null;
    say(`The file ${error.message} beside this page cannot be read.`);
    throw error;
  });

  // Figures in words, as the page itself has them.
  const figure = (x, name = "value") => {
    if (!Number.isFinite(x)) return Number.isNaN(x) ? "unknown" : "unbounded";
    const whole = facts.whole.includes(name);
    const text = Math.abs(x) >= 1e15 && !whole ? x.toExponential(3)
      : x.toLocaleString("en-US", whole ? {} : { minimumFractionDigits: 1, maximumFractionDigits: 1 });
    return text.replace("-", "−");
  };
  const called = (axis, i) => axis.names[i] || axis.codes[i];

  // Rows

  function bar(row, low, span) {
    const at = (x) => `${(100 * (Math.min(Math.max(x, low), low + span) - low) / span).toFixed(2)}%`;
    const piece = (name, style) => { const i = make("i", { class: name }); Object.assign(i.style, style); return i; };
    const left = parseFloat(at(row.lower)), right = parseFloat(at(row.upper));
    const zero = parseFloat(at(0)), value = parseFloat(at(row.value));
    return make("span", { class: "bar", "aria-hidden": "true" }, piece("zero", { left: at(0) }),
      piece("stem", { left: `${Math.min(zero, value)}%`, width: `${Math.abs(value - zero)}%` }),
      piece("range", { left: `${left}%`, width: `${right - left}%` }), piece("at", { left: at(row.value) }));
  }

  function show() {
    const first = page * facts.shown, here = [...order.subarray(first, first + facts.shown)];
    const rows = here.map((cell) => Object.fromEntries(
      ["value", "lower", "upper", "standard_error"].map((name) => [name, columns[name][cell]])));
    const marks = rows.flatMap((row) => [row.value, row.lower, row.upper]).filter(Number.isFinite);
    const low = Math.min(0, ...marks), span = Math.max(0, ...marks) - low || 1;
    body.replaceChildren(...rows.map((row, i) => make("tr", {},
      ...axes.map((axis, a) => {
        const key = columns.keys[a][here[i]], name = axis.names[key];
        return name ? make("td", {}, `${name} `, make("span", { class: "code" }, axis.codes[key])) : make("td", {}, axis.codes[key]);
      }),
      make("td", { class: "n" }, figure(row.value)),
      make("td", { class: "n" }, `${figure(row.lower, "lower")} to ${figure(row.upper, "upper")}`),
      make("td", { class: "n" }, figure(row.standard_error, "standard_error")),
      make("td", {}, bar(row, low, span)))));
    const last = Math.min(first + facts.shown, order.length);
    say(order.length ? `Cells ${(first + 1).toLocaleString("en-US")} to ${last.toLocaleString("en-US")} of ${order.length.toLocaleString("en-US")}`
      : "No cell meets the search and the filters.");
    back.disabled = page === 0;
    forth.disabled = last >= order.length;
    heads.forEach((head, i) => {
      if (sorted.by === i) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  function select() {
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const kept = axes.map((axis, a) => Uint8Array.from(axis.codes, (_, i) => filters[a].every((filter) => filter(i)) ? 1 : 0));
    const texts = axes.map((axis) => axis.codes.map((code, i) => `${code} ${axis.names[i]}`.toLowerCase()));
    const met = axes.map((_, a) => words.map((word) => Uint8Array.from(texts[a], (text) => text.includes(word) ? 1 : 0)));
    const found = new Uint32Array(facts.cells);
    let count = 0;
    for (let cell = 0; cell < facts.cells; cell++) {
      const inside = kept.every((each, a) => each[columns.keys[a][cell]]) &&
        words.every((_, w) => met.some((each, a) => each[w][columns.keys[a][cell]]));
      if (inside) found[count++] = cell;
    }
    order = found.subarray(0, count);
    if (sorted.by !== null) {
      const by = sorted.by < axes.length ? columns.keys[sorted.by]
        : [columns.value, columns.value, columns.standard_error, columns.value][sorted.by - axes.length];
      const sign = sorted.down ? -1 : 1;
      order.sort((a, b) => sign * (by[a] - by[b]) || a - b);
    }
  }

  async function refresh(turn = 0) {
    await ready();
    if (turn === 0) { page = 0; select(); } else { if (!order) select(); page += turn; }
    show();
  }

  const sortBy = (column) => {
    sorted = { by: column, down: sorted.by === column ? !sorted.down : column >= heads.length - 4 };
    return refresh();
  };

  // Controls

  const status = make("p", { role: "status" });
  const say = (text) => { status.textContent = text; };
  const first = `Cells 1 to ${Math.min(facts.shown, facts.cells).toLocaleString("en-US")} of ${facts.cells.toLocaleString("en-US")}`;
  const search = make("input", { type: "search", placeholder: "a name or a code" });
  let typing = null;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(refresh, 250); });
  const back = make("button", { type: "button", onclick: () => refresh(-1), disabled: true }, "Previous");
  const forth = make("button", { type: "button", onclick: () => refresh(1), disabled: facts.cells <= facts.shown }, "Next");
  const filters = [];

  const options = (codes, names) => codes.map((code, i) => [code, i, names[i] ? `${names[i]} (${code})` : code])
    .map(([, i, text]) => make("option", { value: i }, text));

  function choice(label, codes, names, changed, all = "All") {
    const list = make("select", { onchange: changed }, ...(all ? [make("option", { value: "" }, all)] : []), ...options(codes, names));
    return [make("label", {}, label, list), list];
  }

  async function withFilters(box) {
    await ready();
    axes.forEach((axis, a) => {
      filters[a] = [];
      const add = (label, codes, names, of) => {
        if (codes.length > 5000) return;
        const [labelled, list] = choice(label, codes, names, () => refresh());
        filters[a].push((i) => list.value === "" || of(i) === Number(list.value));
        box.append(labelled);
      };
      axis.groups.forEach((group) => add(group.label, group.codes, group.names, (i) => group.of[i]));
      if (axis.codes.length > 1) add(axis.label, axis.codes, axis.names, (i) => i);
    });
    await refresh();
  }

  function controls() {
    const box = make("div", { class: "controls" }, make("label", {}, "Search", search));
    const more = make("button", { type: "button" }, "Show filters");
    more.addEventListener("click", async () => { more.remove(); await withFilters(box); box.querySelector("select")?.focus(); });
    box.append(more);
    document.getElementById("controls").append(box, status);
    document.getElementById("cells").parentElement.after(make("div", { class: "controls pager" }, back, forth));
    say(first);
    heads.slice(0, -1).forEach((head, i) => {
      const text = head.textContent;
      head.replaceChildren(make("button", { type: "button", onclick: () => sortBy(i) }, text));
    });
  }

  // The map

  const NS = "http://www.w3.org/2000/svg";
  const drawn = (name, attributes) => {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  function outlines() {
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

  async function map(section) {
    const level = section.dataset.map;
    section.querySelector("button")?.remove();
    const told = make("p", { role: "status" }, "Loading the map …");
    section.append(told);
    await Promise.all([ready(), script(`maps/${level}.js`)]);
    const which = axes.findIndex((axis) => axis.level === level), axis = axes[which];
    const svg = drawn("svg", { viewBox: "0 0 975 610", role: "img" }), inside = drawn("g", {});
    const paths = outlines().map(([code, d]) => {
      const path = drawn("path", { d, class: "none" });
      path.append(drawn("title", {}));
      const key = axis.codes.indexOf(code);
      (key < 0 ? svg : inside).append(path);
      return [key, path];
    });
    svg.append(inside);
    const legend = make("ul", { class: "legend" }), beside = make("details", {});
    const without = axis.codes.map((_, i) => i).filter((i) => !(axis.codes[i] in boundaries.shapes));
    const shown = choice("Shown", ["figures", "relative errors"], [], draw, null);
    const others = axes.map((each, a) => a === which ? null : choice(each.label, each.codes, each.names, draw, null));
    others.forEach((other, a) => { if (other) other[1].value = Math.max(0, axes[a].codes.indexOf(facts.at[axes[a].level])); });
    function draw() {
      const cells = new Map(), relative = shown[1].value === "1";
      for (let cell = 0; cell < facts.cells; cell++) {
        if (others.every((other, a) => !other || columns.keys[a][cell] === Number(other[1].value))) cells.set(columns.keys[which][cell], cell);
      }
      const of = (cell) => relative ? columns.standard_error[cell] / Math.abs(columns.value[cell]) : columns.value[cell];
      const text = (x) => relative ? (x > 10 ? "over 1,000 %" : `${(100 * x).toFixed(1)} %`) : figure(x);
      const said = (cell) => text(of(cell)) + (relative ? "" : ` (${figure(columns.lower[cell], "lower")} to ${figure(columns.upper[cell], "upper")})`);
      const values = [...cells.values()].map(of).sort((a, b) => a - b);
      const cuts = [1, 2, 3, 4].map((i) => values[Math.floor(values.length * i / 5)]);
      for (const [key, path] of paths) {
        const cell = cells.get(key);
        path.setAttribute("class", cell === undefined ? "none" : `q${cuts.filter((cut) => of(cell) >= cut).length}`);
        path.firstChild.textContent = cell === undefined ? "not in the table"
          : `${called(axis, key)}: ${said(cell)}`;
      }
      const lines = without.filter((key) => cells.has(key)).map((key) =>
        make("li", {}, `${called(axis, key)} (${axis.codes[key]}): ${said(cells.get(key))}`));
      beside.hidden = !lines.length;
      beside.open = lines.length <= 12;
      beside.replaceChildren(make("summary", {}, `Not on the map, which has no boundaries for them: ${lines.length}`), make("ul", {}, ...lines));
      const ends = [values[0], ...cuts, values.at(-1)];
      legend.replaceChildren(...[0, 1, 2, 3, 4].map((i) => make("li", {}, make("span", { class: `q${i}` }), `${text(ends[i])} to ${text(ends[i + 1])}`)),
        make("li", {}, make("span", { class: "none" }), "not in the table"));
      const what = relative ? "Relative errors: the standard error over the figure" : `In ${facts.unit}`;
      svg.setAttribute("aria-label", `Map. ${what}. The same numbers stand in the table below.`);
      told.textContent = `${what}; each shade is a fifth of the ${cells.size.toLocaleString("en-US")} cells. The same numbers stand in the table below.`;
    }
    section.append(make("div", { class: "controls" }, shown[0], ...others.filter(Boolean).map((other) => other[0])), svg, legend, beside);
    const box = inside.getBBox(), edge = 4 + 0.05 * Math.max(box.width, box.height);
    if (box.width && box.width < 700) { // a part of the country: nothing is gained from the rest
      svg.setAttribute("viewBox", [box.x - edge, box.y - edge, box.width + 2 * edge, box.height + 2 * edge].join(" "));
    }
    draw();
  }

  document.addEventListener("DOMContentLoaded", () => {
    controls();
    const section = document.getElementById("map");
    if (!section) return;
    section.hidden = false;
    section.append(make("button", { type: "button", onclick: () => map(section) }, "Show the map"));
    if (facts.cells <= facts.part && "IntersectionObserver" in window) {
      const seen = new IntersectionObserver((entries) => {
        if (entries.some((entry) => entry.isIntersecting)) { seen.disconnect(); section.querySelector("button") && map(section); }
      });
      seen.observe(section);
    }
  });

  return { keys: (found) => { axes = found; axes.forEach((_, a) => { filters[a] ||= []; }); }, part: (i, found) => { parts[i] = found; },
    map: (found) => { boundaries = found; } };
})();
