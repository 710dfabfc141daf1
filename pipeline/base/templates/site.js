// What all pages of a site share: tables loaded from the scripts beside them, figures in words, search, the address of
// a view, and rows for download. Pages can be read without it.
"use strict";
const prdp = (() => {
  const home = new URL(".", document.currentScript.src).href;
  let loading = null, queue = Promise.resolve(), boundaries = null, listed = null;

  const make = (tag, attributes = {}, ...inside) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "class") element.className = value;
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...inside.filter((each) => each !== null));
    return element;
  };

  const script = (path) => new Promise((resolve, reject) => {
    document.head.append(make("script", { src: home + path, onload: resolve, onerror: () => reject(new Error(path)) }));
  });

  // Columns as figures.py packs them.
  const bytes = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const unpacked = (column, count) => {
    const [kind, first, second] = column;
    if (kind === "c") return new Float64Array(count).fill(Number(first));
    if (kind === "d") return Float64Array.from(bytes(second), (i) => Number(first[i]));
    const data = new DataView(bytes(first).buffer);
    return kind === "i" ? Float64Array.from({ length: count }, (_, i) => data.getInt32(4 * i, true))
      : Float64Array.from({ length: count }, (_, i) => data.getFloat64(8 * i, true));
  };

  // A table of which a page knows `facts`: its axes, and columns of all cells. One is loaded after the other.
  const table = (facts, say = () => {}) => queue = queue.catch(() => {}).then(async () => {
    const parts = [], count = facts.cells;
    loading = { parts };
    await script(`data/${facts.name}/keys.js`);
    for (let i = 0; i < facts.parts; i++) {
      say(`Loading part ${i + 1} of ${facts.parts} …`);
      await script(`data/${facts.name}/${i}.js`);
    }
    const axes = loading.axes;
    const columns = { value: new Float64Array(count), lower: new Float64Array(count), upper: new Float64Array(count),
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
    return { facts, axes, columns };
  });

  // Figures in words, as the pages themselves have them.
  const count = (x) => x.toLocaleString("en-US");
  const figure = (facts, x, name = "value") => {
    if (!Number.isFinite(x)) return Number.isNaN(x) ? "unknown" : "unbounded";
    const whole = facts.whole.includes(name);
    const text = Math.abs(x) >= 1e15 && !whole ? x.toExponential(3)
      : x.toLocaleString("en-US", whole ? {} : { minimumFractionDigits: 1, maximumFractionDigits: 1 });
    return text.replace("-", "−");
  };
  const called = (axis, i) => axis.names[i] || axis.codes[i];
  const row = (columns, cell) => Object.fromEntries(
    ["value", "lower", "upper", "standard_error"].map((name) => [name, columns[name][cell]]));
  const interval = (facts, { lower, upper }) => `${figure(facts, lower, "lower")} to ${figure(facts, upper, "upper")}`;

  const clear = (facts, { lower, upper }) => lower > 0 || (!facts.nonnegative && upper < 0);
  const reading = (facts, { value, lower, upper }) => facts.nonnegative && lower <= 0
    ? `less than the noise: read as none${upper > 0 ? ` to ${figure(facts, upper, "upper")}` : ""}`
    : value < lower || value > upper ? "the figure is outside: quote the interval" : "";
  // An interval, and how to read it where totals cannot be negative.
  const intervalOf = (facts, row) => make("td", { class: "n" }, interval(facts, row),
    ...(reading(facts, row) ? [" ", make("span", { class: "reading" }, reading(facts, row))] : []));

  // Bars on one scale that holds all rows and 0.
  function bars(rows) {
    const marks = rows.flatMap((each) => [each.value, each.lower, each.upper]).filter(Number.isFinite);
    const low = Math.min(0, ...marks), span = Math.max(0, ...marks) - low || 1;
    const at = (x) => 100 * (Math.min(Math.max(x, low), low + span) - low) / span;
    const piece = (name, left, right = left) => {
      const i = make("i", { class: name });
      Object.assign(i.style, { left: `${left.toFixed(2)}%` }, right > left ? { width: `${(right - left).toFixed(2)}%` } : {});
      return i;
    };
    return (each) => make("span", { class: "bar", "aria-hidden": "true" }, piece("zero", at(0)),
      piece("stem", Math.min(at(0), at(each.value)), Math.max(at(0), at(each.value))),
      piece("range", at(each.lower), at(each.upper)), piece("at", at(each.value)));
  }

  // Search: each word of a query begins a word of a name, a code, or of what the code is part of. A score says how well
  // a code is meant: whole names before beginnings, and places before other keys; figures decide between equal scores.
  const PLACES = new Set(["nation", "state", "county", "cbsa", "csa", "zip"]);
  const GENERIC = new Set(["county", "parish", "borough", "census", "area", "municipality", "city", "the", "and", "of", "other"]);
  const SHORT = { saint: "st", sainte: "ste", fort: "ft", mount: "mt" };
  const words = (text) => text.normalize("NFD").replace(/[\u0300-\u036f'’]/g, "").toLowerCase().split(/[^a-z0-9+]+/)
    .filter(Boolean).map((word) => SHORT[word] || word);

  // The words of each code of an axis, made once: of its name, of its letters, and of what it is part of.
  function entries(axis) {
    return axis.entries ||= axis.codes.map((code, i) => {
      const place = PLACES.has(axis.level), name = axis.names[i] || "";
      const [own, ...rest] = place ? name.split(",") : [name];
      const groups = axis.groups.filter((group) => group.of[i] >= 0);
      return { place, code: code.toLowerCase(), codes: words(code), own: words(own), letters: axis.letters?.[i].toLowerCase() || null,
        around: [...rest.flatMap(words), ...groups.flatMap((group) => [...words(group.names[group.of[i]] || ""), ...words(group.letters?.[group.of[i]] || "")])] };
    });
  }

  function score(entry, query) {
    let mask = 0, near = 0, generic = 0;
    const whole = new Set(), begun = new Set();
    query.forEach((word, w) => {
      const state = entry.place && word.length === 2 && (entry.letters === word || entry.around.includes(word));
      const inside = entry.own.filter((own) => own === word || (!state && own.startsWith(word)));
      inside.forEach((own) => (own === word ? whole : begun).add(own));
      if (GENERIC.has(word) && whole.has(word)) generic = 1;
      const around = inside.length ? 0 : entry.around.includes(word) ? (state ? 4.2 : 1)
        : word.length > 2 && entry.around.some((each) => each.startsWith(word)) ? 0.5 : 0;
      const coded = entry.code === word ? 7 : entry.codes.includes(word) ? 6 : /\d/.test(word) && entry.code.startsWith(word) ? 2 : 0;
      const letters = entry.letters === word ? 6 : 0;
      near = Math.max(near, around, coded, letters);
      if (inside.length || around || coded || letters) mask |= 1 << w;
    });
    const names = entry.own.filter((own) => !GENERIC.has(own)), left = names.filter((own) => !whole.has(own) && !begun.has(own)).length;
    const met = names.filter((own) => whole.has(own)).length, first = whole.has(names[0]) || begun.has(names[0]) ? 0.5 : 0;
    const own = !names.length || left === names.length ? 0 : left ? (met ? 3 : 2) + first - 0.1 * left : met === names.length ? 6 : 4;
    return [mask, own + generic * 0.5 + near];
  }

  // The queries that a text may mean: all its words, else those that say something.
  const STOP = new Set(["in", "the", "of", "and", "for", "at", "near"]);
  const queries = (text) => {
    const every = words(text).slice(0, 30), few = every.filter((word) => !STOP.has(word));
    return few.length && few.length < every.length ? [every, few] : [every];
  };

  // What a query meets: of each axis the words (as bits) and scores of its codes.
  const met = (axes, query) => {
    return { all: (1 << query.length) - 1, axes: axes.map((axis) => {
      const weight = PLACES.has(axis.level) ? 16 : 1, each = entries(axis).map((entry) => score(entry, query));
      return { masks: Uint32Array.from(each, ([mask]) => mask), scores: Float64Array.from(each, ([, points]) => weight * points) };
    }) };
  };

  // The address of a view: what was chosen stands behind its #, as level=code and name=value.
  const chosen = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const address = (pairs) => {
    const text = new URLSearchParams(pairs).toString();
    if (text || chosen().size) history.replaceState(null, "", `${location.href.split("#")[0]}${text && `#${text}`}`);
    const cite = document.querySelector("#cite .address");
    if (cite) cite.textContent = ` ${location.href}`;
  };

  // The reader's place: its name, and its codes by level. It is kept in this browser alone, and never sent anywhere.
  const KEPT = "prdp.place";
  const here = () => { try { return JSON.parse(localStorage.getItem(KEPT)); } catch { return null; } };
  const stay = (at) => { try { if (at) localStorage.setItem(KEPT, JSON.stringify(at)); else localStorage.removeItem(KEPT); } catch { /* no storage: nothing is kept */ } };

  // Rows as a file: codes and names of each key, figures as they are, their unit, and the coverage of the interval.
  function download({ facts, axes, columns }, cells) {
    const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const number = (x) => Number.isFinite(x) ? x : Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf";
    const lines = [[...axes.flatMap((axis) => [axis.level, `${axis.level}_name`]), "value", "lower", "upper", "standard_error", "unit", "coverage"].map(quoted).join(",")];
    for (const cell of cells) {
      const keys = axes.flatMap((axis, a) => [axis.codes[columns.keys[a][cell]], axis.names[columns.keys[a][cell]]]).map(quoted);
      const figures = Object.values(row(columns, cell)).map(number);
      lines.push([...keys, ...figures, quoted(facts.unit), quoted(`${facts.coverage} %`)].join(","));
    }
    const link = make("a", { href: URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" })), download: `${facts.name}-rows.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  return { home, make, chosen, address, here, stay, download, places: PLACES, queries, met, script, table, figure, called, count, row, clear, reading, interval, intervalOf, bars,
    boundaries: async (level) => { await script(`maps/${level}.js`); return boundaries; },
    keys: (axes) => { loading.axes = axes; }, part: (i, columns) => { loading.parts[i] = columns; },
    map: (shapes) => { boundaries = shapes; },
    start: async () => { if (!listed) await script("data/index.js"); return listed; }, index: (all) => { listed = all; } };
})();
