// The start page's question, and the page of a place, an industry or both: figures of all tables that tell them, their
// largest parts, beside what they are part of. All of it is made here from the tables' own scripts.
"use strict";
(() => {
  const { make, count } = prdp;
  const MOST = 100_000, LARGEST = 10; // cells of a table that is loaded unasked; rows of a table
  const ask = document.getElementById("ask"), place = document.getElementById("place");
  let all = null;

  const named = (axis, i) => axis.names[i] || axis.codes[i];
  const link = (codes) => `${prdp.home}place.html#${new URLSearchParams(codes)}`;
  const told = (levels) => all.tables.some((table) => levels.every((level) => table.by.includes(level)));

  // What a text may mean, the best first: one code, or a place and another one that some table tells together.
  function meanings(text) {
    for (const query of prdp.queries(text)) {
      const { all: full, axes } = prdp.met(all.levels, query), singles = [], parts = new Map();
      if (!full) return [];
      axes.forEach(({ masks, scores }, a) => masks.forEach((mask, i) => {
        if (!mask) return;
        const hit = { mask, score: scores[i], rank: all.levels[a].rank[i], keys: [[a, i]] };
        if (mask === full) singles.push(hit);
        else {
          const name = `${a} ${mask}`, best = parts.get(name) || [];
          best.push(hit);
          parts.set(name, best);
        }
      }));
      const order = (one, other) => other.score - one.score || one.keys[0][0] - other.keys[0][0] || one.rank - other.rank;
      const few = [...parts.values()].map((hits) => hits.sort(order).slice(0, 3)).flat();
      const [places, others] = [true, false].map((is) => few.filter(({ keys: [[a]] }) => prdp.places.has(all.levels[a].level) === is));
      const pairs = places.flatMap((one) => others.filter((other) => (one.mask | other.mask) === full &&
        told([all.levels[one.keys[0][0]].level, all.levels[other.keys[0][0]].level])).map((other) =>
        ({ score: one.score + other.score, rank: one.rank + other.rank, keys: [...one.keys, ...other.keys] })));
      const hits = [...singles.sort(order), ...pairs.sort(order)].slice(0, 8);
      if (hits.length) return hits.map(({ keys }) => keys.map(([a, i]) => [all.levels[a], i]));
    }
    return [];
  }

  function asking(box) {
    const input = make("input", { type: "search", placeholder: "a name or a code" });
    const status = make("p", { role: "status", class: "sr" }), hits = make("ul", { class: "hits" });
    async function answer() {
      all = await prdp.start();
      const found = input.value.trim() ? meanings(input.value) : [];
      hits.replaceChildren(...found.map((keys) => make("li", {}, make("a", { href: link(keys.map(([axis, i]) => [axis.level, axis.codes[i]])) },
        keys.map(([axis, i]) => named(axis, i)).join(" · ")), " ", make("span", { class: "code" }, keys.map(([axis, i]) => `${axis.label} ${axis.codes[i]}`).join(", ")))));
      status.textContent = input.value.trim() ? (found.length ? `${found.length} found` : "Nothing has this name or code.") : "";
      status.classList.toggle("sr", found.length > 0);
    }
    let typing = null;
    input.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(answer, 100); });
    box.append(make("form", { role: "search", onsubmit: async (event) => {
      event.preventDefault();
      await answer();
      hits.querySelector("a")?.click();
    } }, make("label", {}, `Figures of ${box.dataset.of}`, input)), status, hits);
  }

  // The page

  // Rows of a table for these codes: numbers of cells, the largest first.
  function rowsOf({ axes, columns }, codes) {
    const wanted = Object.entries(codes).map(([level, code]) => {
      const a = axes.findIndex((axis) => axis.level === level);
      return [columns.keys[a], axes[a].codes.indexOf(code)];
    });
    const cells = [];
    for (let cell = 0; cell < columns.value.length; cell++) if (wanted.every(([keys, key]) => keys[cell] === key)) cells.push(cell);
    return cells.sort((a, b) => columns.value[b] - columns.value[a]);
  }

  const loaded = new Map();
  const load = (facts) => loaded.get(facts.name) || loaded.set(facts.name, prdp.table(facts)).get(facts.name);

  // What a place is part of, and the table that tells it beside `facts`: its codes, and how it is called.
  function parentOf(facts, codes) {
    const level = Object.keys(codes).find((each) => prdp.places.has(each)) || Object.keys(codes)[0];
    const axis = all.levels.find((each) => each.level === level), at = axis.codes.indexOf(codes[level]);
    const { [level]: _, ...others } = codes;
    for (const group of [...axis.groups, null]) {
      const by = facts.by.flatMap((each) => each !== level ? [each] : group ? [group.level] : []);
      const table = all.tables.find((each) => each.statistic === facts.statistic && each.where === facts.where && each.cells <= MOST &&
        each.by.length === by.length && by.every((name) => each.by.includes(name)));
      if (table && group && group.of[at] >= 0) return [table, { ...others, [group.level]: group.codes[group.of[at]] }, group.names[group.of[at]] || group.codes[group.of[at]]];
      if (table && !group && by.length) return [table, others, "all"];
    }
    return null;
  }

  // A table's figures here as a section.
  async function section(facts, codes) {
    const table = await load(facts), { axes, columns } = table, cells = rowsOf(table, codes);
    if (!cells.length) return null;
    const open = axes.map((axis, a) => [axis, a]).filter(([axis]) => !(axis.level in codes));
    const parent = parentOf(facts, codes), beside = new Map();
    if (parent) {
      const other = await load(parent[0]);
      for (const cell of rowsOf(other, parent[1])) {
        beside.set(other.axes.map((axis, a) => axis.level in parent[1] ? "" : other.axes[a].codes[other.columns.keys[a][cell]]).filter(Boolean).join(" "),
          [parent[0], prdp.row(other.columns, cell)]);
      }
    }
    const here = cells.slice(0, LARGEST), rows = here.map((cell) => prdp.row(columns, cell)), bar = prdp.bars(rows);
    const heads = [...open.map(([axis]) => [axis.label, ""]), [facts.unit, "n"], ["interval", "n"], ["standard error", "n"],
      ...(parent ? [[parent[2], "n"]] : []), ["interval as a bar", ""]];
    const lines = rows.map((row, i) => {
      const keys = open.map(([axis, a]) => columns.keys[a][here[i]]);
      const other = beside.get(open.map(([axis], k) => axis.codes[keys[k]]).join(" "));
      return make("tr", {}, ...open.map(([axis], k) => make("td", {}, make("a", { href: link([...Object.entries(codes), [axis.level, axis.codes[keys[k]]]]) }, named(axis, keys[k])))),
        make("td", { class: "n", "data-of": facts.unit }, prdp.figure(facts, row.value)), prdp.intervalOf(facts, row),
        make("td", { class: "n" }, prdp.figure(facts, row.standard_error, "standard_error")),
        parent && make("td", { class: "n beside", "data-head": parent[2] }, other ? `${prdp.figure(other[0], other[1].value)} (${prdp.interval(other[0], other[1])})` : "–"),
        make("td", {}, bar(row)));
    });
    const whole = `${prdp.home}tables/${facts.name}.html#${new URLSearchParams(codes)}`;
    return make("section", {}, make("h2", {}, facts.title),
      make("p", {}, `In ${facts.unit}${facts.where ? `, only ${facts.where}` : ""}; the true total is in each interval with ${facts.coverage} % confidence. `,
        make("a", { href: whole }, cells.length > here.length ? `All ${count(cells.length)} rows` : "In its table"), cells.length > here.length ? `; here are the ${LARGEST} largest.` : "."),
      make("div", { class: "wide", tabindex: 0, role: "group", "aria-label": facts.title }, make("table", { class: "rows" },
        make("thead", {}, make("tr", {}, ...heads.map(([text, kind]) => make("th", { scope: "col", class: kind }, text)))), make("tbody", {}, ...lines))));
  }

  // Whether the tables of this site open with this place.
  function keep(axis, i) {
    const codes = Object.fromEntries([...axis.groups.filter((group) => group.of[i] >= 0).map((group) => [group.level, group.codes[group.of[i]]]), [axis.level, axis.codes[i]]]);
    const box = make("input", { type: "checkbox", checked: prdp.here()?.codes[axis.level] === axis.codes[i],
      onchange: () => prdp.stay(box.checked ? { name: named(axis, i), codes } : null) });
    return make("p", {}, make("label", {}, box, " My place: tables open with it. This browser keeps it, and sends it nowhere."));
  }

  let turn = 0;
  async function show() {
    const mine = ++turn;
    all = await prdp.start();
    const codes = Object.fromEntries([...prdp.chosen()].filter(([level, code]) => all.levels.some((axis) => axis.level === level && axis.codes.includes(code))));
    const keys = Object.entries(codes).map(([level, code]) => { const axis = all.levels.find((each) => each.level === level); return [axis, axis.codes.indexOf(code)]; });
    const heading = document.querySelector("h1"), text = keys.map(([axis, i]) => named(axis, i)).join(" · ");
    heading.textContent = text || heading.dataset.text;
    document.title = heading.textContent;
    place.replaceChildren();
    if (!keys.length) return;
    const known = new Set(all.levels.map((axis) => axis.level));
    const around = keys.flatMap(([axis, i]) => [
      ...(keys.length > 1 ? [[axis, i]] : []).map(([one, k]) => [[[one.level, one.codes[k]]], named(one, k)]),
      ...axis.groups.filter((group) => group.of[i] >= 0 && known.has(group.level))
        .map((group) => [[...Object.entries(codes).filter(([level]) => level !== axis.level), [group.level, group.codes[group.of[i]]]], group.names[group.of[i]] || group.codes[group.of[i]]])]);
    const status = make("p", { role: "status" }, "Loading …");
    place.append(make("p", { class: "code" }, keys.map(([axis, i]) => `${axis.label} ${axis.codes[i]}`).join(", ")));
    if (around.length) place.append(make("p", {}, "See also: ", ...around.flatMap(([to, name], i) => [i ? ", " : "", make("a", { href: link(to) }, name)])));
    const spot = keys.find(([axis]) => prdp.places.has(axis.level));
    if (spot) place.append(keep(...spot));
    place.append(status);
    const tables = all.tables.filter((table) => Object.keys(codes).every((level) => table.by.includes(level)))
      .sort((one, other) => one.by.length - other.by.length || one.cells - other.cells);
    let shown = 0;
    for (const facts of tables) {
      const holder = make("div", {});
      if (mine !== turn) return;
      place.append(holder);
      const fill = async () => { const made = await section(facts, codes); if (mine === turn && made) { holder.replaceChildren(made); shown++; } };
      if (facts.cells <= MOST) await fill();
      else holder.append(make("h2", {}, facts.title), make("button", { type: "button", onclick: fill }, `Load it: ${count(facts.cells)} cells`));
    }
    if (mine !== turn) return;
    const inner = all.tables.filter((table) => keys.every(([axis]) => table.by.includes(axis.level) || table.groups.includes(axis.level)) && !tables.includes(table));
    if (inner.length) place.append(make("h2", {}, "Inside it"), make("ul", {}, ...inner.map((table) =>
      make("li", {}, make("a", { href: `${prdp.home}tables/${table.name}.html#${new URLSearchParams(codes)}` }, table.title)))));
    status.textContent = shown || inner.length ? "" : "No table tells figures of this.";
    prdp.address(Object.entries(codes));
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (ask) asking(ask);
    if (!place) return;
    window.addEventListener("hashchange", show);
    show().catch((error) => place.replaceChildren(make("p", { role: "status" }, `The file ${error.message} beside this page cannot be read.`)));
  });
})();
