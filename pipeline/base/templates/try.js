"use strict";
const prdp = (() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const STEEP = 2, LARGE = 8, RISE = 200, COARSEST = 25, HAIR = 1e-6, ENOUGH = Math.log(1.003), FINE = 1000, CLOSE = 1.001;
  const fresh = () => ({
    scales: D.tables.map(t => t.scale === null ? 1 : t.split ? 1 : D.policies[t.policies[0]].scale),
    limits: D.limits.map(l => ({rho: l.rho, values: {...l.values}})),
    usable: 0.3,
  });
  let state = fresh();

  // ---- tables that are read between their points: cubic polynomials through the four nearest
  const weights = (knots, at) => {
    let below = 0, above = knots.length;
    while (below < above) { const m = (below + above) >> 1; if (knots[m] < at) below = m + 1; else above = m; }
    const first = Math.min(Math.max(below - 2, 0), Math.max(knots.length - 4, 0)), w = [];
    const last = Math.min(first + 4, knots.length);
    for (let i = first; i < last; i++) {
      let product = 1;
      for (let j = first; j < last; j++) if (j !== i) product *= (at - knots[j]) / (knots[i] - knots[j]);
      w.push(product);
    }
    return [first, w];
  };
  const held = (knots, at) => Math.min(Math.max(at, knots[0]), knots[knots.length - 1]);
  const read = (x, y, values, atX, atY) => {
    const [i, u] = weights(x, held(x, atX)), [j, v] = weights(y, held(y, atY));
    let sum = 0;
    for (let a = 0; a < u.length; a++) for (let b = 0; b < v.length; b++) {
      const value = values[i + a][j + b];
      if (value === null) return null;
      sum += u[a] * v[b] * value;
    }
    return sum;
  };

  // ---- losses (docs/mathematics.md, sections 3 and 4; docs/tight.md)
  const paper = pure => Math.tanh(pure / 2) * pure;
  const fineness = (f, scale) => {
    if (f.parameters.lattice !== "fine") return 1;
    const wanted = Math.min(FINE, Math.ceil(FINE / (scale / f.step)));
    return wanted + 1 - wanted % 2;
  };
  const excess = (pure, s) => {  // P − (s/sinh s)(1 − e^(−P))
    const c = s < 1e-4 ? 1 - s * s / 6 : s / Math.sinh(s);
    const curved = pure < 0.01 ? pure * pure / 2 * (1 - pure / 3 * (1 - pure / 4)) : pure + Math.expm1(-pure);
    return curved - (1 - c) * Math.expm1(-pure);
  };
  const pureOf = (f, u) => {
    const p = f.parameters;
    switch (p.kind) {
      case "generalized_gaussian": return Math.pow(u, p.p);
      case "exponential_polylog":
        return p.d * (Math.pow(Math.log(p.a) + Math.log1p(u / p.a), p.p) - Math.pow(Math.log(p.a), p.p));
      case "symmetric_stable": {
        if (!f.losses || !f.losses.pure) return 2 * Math.asinh(u / 2);
        const {shifts, logs} = f.losses.pure;
        return Math.exp(read(shifts, [0], logs.map(v => [v]), Math.log(u), 0));
      }
      default: throw new Error(`This page cannot compute losses of the kind ${p.kind}: see prdp explain`);
    }
  };
  const between = ({steps, values}, n) => {  // straight from point to point, and beyond the last
    const above = steps.findIndex(step => step >= n), i = above < 0 ? steps.length - 1 : Math.max(above, 1);
    return values[i] + (values[i] - values[i - 1]) * (n - steps[i]) / (steps[i] - steps[i - 1]);
  };
  const lastOctave = (f, scale) => {  // from there on the paper's bound is as good
    const {scales, steps, ratios} = f.losses, known = Math.floor(steps[steps.length - 1] / Math.LN2);
    for (let octave = known; octave >= 0; octave--)
      if (read(scales, steps, ratios, Math.log(scale), octave * Math.LN2) < -ENOUGH) return octave === known ? 40 : octave + 1;
    return 0;
  };
  const nextKnot = (f, scale, n) => {  // as pipeline's losses are stated: up to the next knot; null beyond the last
    if (n <= 1) return 1;
    let octave = 0;
    while (2 ** (octave + 1) < n) octave++;
    if (octave >= f.cached(scale)) return null;
    const pure = o => pureOf(f, 2 ** o * f.step / scale), now = pure(octave);
    const slope = now >= LARGE ? Math.min(STEEP, 2 * Math.log2(pure(octave + 1) / now)) : STEEP;
    const parts = COARSEST * Math.max(1, Math.ceil(slope * RISE / COARSEST - HAIR));
    let knot = 2 ** octave;
    while (knot < n) knot = Math.min(2 ** (octave + 1), knot + Math.max(1, Math.floor(knot / parts)));
    return knot;
  };
  for (const f of D.families) {
    const known = new Map();
    f.cached = scale => { if (!known.has(scale)) known.set(scale, lastOctave(f, scale)); return known.get(scale); };
  }
  const rise = (p, x) => p.kind === "root"
    ? Math.pow(p.a, 1 / p.k) * (p.a > 0 ? Math.expm1(Math.log1p(x / p.a) / p.k) : 0) + (p.a > 0 ? 0 : Math.pow(x, 1 / p.k))
    : Math.log1p(x / p.a);
  const loss = (f, scale, x) => {
    if (!(x > 0)) return 0;
    const p = f.parameters, tight = p.policy === "tight";
    switch (p.kind) {
      case "gaussian": case "groupwise_noisy": return x * x / (2 * scale * scale);
      case "unit_splitting": {
        const pieces = x / p.threshold;
        return scale * (tight ? pieces * pieces : Math.ceil(pieces * (1 - 1e-12)) ** 2);
      }
      case "groupwise_log": case "log": case "root": {
        const d = rise(p, x) / scale;
        return p.noise === "laplace" ? excess(d, 0) : d * d / 2;
      }
      case "laplace":
        return tight ? excess(x / scale, f.step / fineness(f, scale) / scale) : paper(x / scale);
      case "designed": {
        const {pure, curve} = f.losses, n = Math.ceil(x / f.step * (1 - 2 ** -48)), bound = paper(between(pure, n));
        const at = tight ? curve.steps.findIndex(knot => knot >= n) : -1;
        return at < 0 ? bound : Math.min(bound, curve.losses[at]);
      }
    }
    const n = Math.ceil(x / f.step * (1 - 2 ** -48)), bound = paper(pureOf(f, x / scale));
    if (!tight) return bound;
    const knot = nextKnot(f, scale, n);
    if (knot === null) return bound;
    const {scales, steps, ratios} = f.losses;
    const ratio = Math.exp(read(scales, steps, ratios, Math.log(scale), Math.log(knot)));
    return Math.min(bound, paper(pureOf(f, knot * f.step / scale)) * ratio);
  };
  const rounded = x => Number(x.toPrecision(6));
  const scaleOf = p => {
    const t = D.tables[p.table], value = state.scales[p.table];
    if (p.scale === null) return 1;
    return t.split ? rounded(t.more_noise > 0 ? p.scale * value : p.scale / value) : value;
  };
  const lossOf = (p, values) => {
    if (p.table === null) return p.loss;
    return loss(D.families[p.family], scaleOf(p), p.measure === null ? 1 : values[p.measure]);
  };
  const capped = (values, span) => {  // the largest values of a smaller record in these classes; null: there is none
    const own = {...values};
    for (const [measure, [low, high]] of Object.entries(span || {})) {
      if (!(measure in own)) continue;
      if (own[measure] < low) return null;
      if (high !== null) own[measure] = Math.min(own[measure], high);
    }
    return own;
  };
  const limitOf = k => {  // the worst query set: its total, and what each table costs at most
    const {sets, spans} = D.limits[k], values = state.limits[k].values, memory = new Map();
    const of = (i, own) => {
      const p = D.policies[i], key = i + ":" + (p.measure ? own[p.measure] : "");
      if (!memory.has(key)) memory.set(key, lossOf(p, own));
      return memory.get(key);
    };
    let rho = sets.length ? 0 : NaN, worst = new Map();
    const tables = D.tables.map(() => 0);
    sets.forEach((set, s) => {
      const own = capped(values, spans[s]);
      if (own === null) return;
      let sum = 0;
      const shares = new Map();
      for (const i of set) {
        const one = of(i, own), t = D.policies[i].table;
        sum += one;
        shares.set(t, one);
        if (t !== null) tables[t] = Math.max(tables[t], one);
      }
      if (Number.isNaN(sum) || sum > rho) { rho = sum; worst = shares; }
    });
    return {rho, tables, worst, limit: state.limits[k].rho, within: D.limits[k].within};
  };

  // ---- errors
  const errorAt = (p, total, which) => {
    const e = D.families[p.family].errors, at = e.totals.length > 1 ? Math.log(total + e.offset) : e.totals[0];
    const log = read(e.scales, e.totals, e[which], Math.log(scaleOf(p)), at);
    return log === null ? Infinity : Math.exp(log);
  };
  const CLASSES = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7];
  const tableOf = t => {
    let cells = 0, bad = 0;
    const rows = CLASSES.map(() => ({cells: 0, sum: 0}));
    const filled = [];
    for (const i of D.tables[t].policies) {
      const p = D.policies[i];
      for (const [total, count] of p.cells) {
        if (!(total > 0)) continue;
        const relative = errorAt(p, total, "mean") / total;
        cells += count;
        if (!(relative <= state.usable)) bad += count;
        filled.push([total, count, i]);
        let c = CLASSES.length - 1;
        while (c > 0 && total < CLASSES[c]) c--;
        rows[c].cells += count;
        rows[c].sum += count * relative;
      }
    }
    filled.sort((a, b) => a[0] - b[0]);
    let half = 0, middle = filled.length ? filled[filled.length - 1] : [1, 0, D.tables[t].policies[0]];
    for (const each of filled) { half += each[1]; if (2 * half >= cells) { middle = each; break; } }
    const p = D.policies[middle[2]];
    return {
      unusable: cells ? bad / cells : 0, cells, rows, middle: middle[0],
      mean: errorAt(p, middle[0], "mean"), standard: errorAt(p, middle[0], "standard"),
      at: D.tables[t].policies.map(i => ({mean: errorAt(D.policies[i], 0, "mean"), standard: errorAt(D.policies[i], 0, "standard")})),
    };
  };
  const plain = x => {  // no exponent: readers of YAML differ on it
    const text = String(rounded(x));
    return text.includes("e") ? rounded(x).toFixed(Math.min(100, 6 - Math.floor(Math.log10(x)))).replace(/\.?0+$/, "") : text;
  };
  const yaml = () => D.yaml.replace(/'@(scale|limit) (\d+)(?: ([^@]*))?@'/g, (_, kind, i, name) => plain(
    kind === "scale" ? scaleOf(D.policies[i]) : name ? state.limits[i].values[name] : state.limits[i].rho));
  const figures = () => ({limits: D.limits.map((_, k) => { const {rho, tables} = limitOf(k); return {rho, tables}; }),
    tables: D.tables.map((_, t) => tableOf(t)), yaml: yaml()});

  // ---- the address holds what differs from the plan
  const fragment = () => {
    const base = fresh(), parts = [];
    state.scales.forEach((v, t) => { if (v !== base.scales[t]) parts.push(`t${t}=${v}`); });
    state.limits.forEach((l, k) => {
      if (l.rho !== base.limits[k].rho) parts.push(`l${k}=${l.rho}`);
      for (const m in l.values) if (l.values[m] !== base.limits[k].values[m]) parts.push(`l${k}.${m}=${l.values[m]}`);
    });
    if (state.usable !== base.usable) parts.push(`usable=${state.usable}`);
    return parts.join("&");
  };
  const set = text => {
    state = fresh();
    for (const part of text.split("&")) {
      const [key, raw] = part.split("="), value = Number(raw), of = /^([tl])(\d+)(?:\.(.+))?$/.exec(decodeURIComponent(key));
      if (!(value > 0)) continue;
      if (key === "usable") state.usable = value;
      else if (of && of[1] === "t" && of[2] in state.scales) state.scales[of[2]] = value;
      else if (of && of[1] === "l" && of[2] in state.limits) {
        if (of[3] === undefined) state.limits[of[2]].rho = value;
        else if (of[3] in state.limits[of[2]].values) state.limits[of[2]].values[of[3]] = value;
      }
    }
  };

  // ---- what is seen
  const el = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) key === "text" ? made.textContent = value : made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const digits = (x, n = 3) => x === null || !isFinite(x) ? "none" : Math.abs(x) >= 1e6 || (x && Math.abs(x) < 1e-4)
    ? x.toExponential(n - 1) : Number(x.toPrecision(n)).toLocaleString("en-US", {maximumFractionDigits: 8});
  const bound = x => {  // a loss, rounded up
    const near = Number(x.toPrecision(3));
    return digits(near >= x || !isFinite(x) ? near : near + 10 ** (near.toExponential().split("e")[1] - 2));
  };
  const share = x => !isFinite(x) ? "none" : x >= 10 ? `${digits(x, 2)}×` : `${digits(100 * x, x < 1 ? 2 : 3)} %`;
  const listeners = [];
  const slider = (label, least, most, get, put, whole = false) => {  // a label, a slider on a log axis, and a number
    const id = `i${listeners.length}`, at = x => Math.log(x / least) / Math.log(most / least) || 0;
    const back = y => { const x = Number((least * Math.pow(most / least, y)).toPrecision(3)); return whole ? Math.max(1, Math.round(x)) : x; };
    const range = el("input", {type: "range", min: 0, max: 1, step: 0.005, "aria-label": `${label}, slider`});
    const box = el("input", {type: "number", id, min: 0, step: "any"});
    range.addEventListener("input", () => { put(back(Number(range.value))); update(); });
    box.addEventListener("change", () => { const x = Number(box.value); if (x > 0) put(Math.min(Math.max(x, least), most)); update(); });
    listeners.push(() => {
      range.value = at(get()); range.setAttribute("aria-valuetext", digits(get()));
      if (document.activeElement !== box) box.value = get();
    });
    return el("div", {class: "row"}, el("label", {for: id, text: label}), range, box);
  };
  const sameNoise = t => JSON.stringify(D.tables[t].policies.map(i => [D.policies[i].family, D.policies[i].scale]));
  const together = document.getElementById("together");
  together.checked = D.tables.length > 20;
  const putScale = (t, value) => {
    const same = together.checked ? sameNoise(t) : null;
    state.scales.forEach((_, u) => { if (u === t || (same !== null && sameNoise(u) === same)) state.scales[u] = value; });
  };
  const reach = t => {
    const table = D.tables[t], first = D.policies[table.policies[0]], f = D.families[first.family];
    if (!table.split) return [f.least, f.most];
    const factors = table.policies.map(i => D.policies[i]).filter(p => p.scale !== null).map(p => {
      const {least, most} = D.families[p.family];
      return table.more_noise > 0 ? [least / p.scale, most / p.scale] : [p.scale / most, p.scale / least];
    });
    return [Math.max(...factors.map(x => x[0])), Math.min(...factors.map(x => x[1]))].map(x => rounded(x));
  };
  const putError = (t, wanted) => {  // the scale at which the middle cell has that error: by halves
    const [least, most] = reach(t), sign = D.tables[t].split ? 1 : D.tables[t].more_noise;
    let low = Math.log(least), high = Math.log(most);
    const before = state.scales[t];
    for (let i = 0; i < 50; i++) {
      state.scales[t] = Math.exp((low + high) / 2);
      ((tableOf(t).mean < wanted) === (sign > 0)) ? low = (low + high) / 2 : high = (low + high) / 2;
    }
    const found = rounded(Math.exp(low));
    state.scales[t] = before;
    putScale(t, Math.min(Math.max(found, least), most));
  };

  const limitCards = D.limits.map((l, k) => {
    const bar = el("div", {class: "bar", role: "img"}), told = el("p"), card = el("section", {class: "card"});
    card.append(el("h3", {text: `Limit ${k + 1}${l.keys ? `: ${l.keys}` : ""}`}), told, bar);
    for (const measure in l.values)
      card.append(slider(measure, 1, 1e2 * Math.max(1e4, l.values[measure]), () => state.limits[k].values[measure],
        v => { state.limits[k].values[measure] = v; }, true));
    if (l.rho !== null) card.append(slider("limit ρ", l.rho / 100, l.rho * 100, () => state.limits[k].rho, v => { state.limits[k].rho = v; }));
    document.getElementById("limits").append(card);
    return {bar, told};
  });
  const tableCards = D.tables.map((table, t) => {
    const card = el("section", {class: "card"}), facts = el("dl", {class: "facts"}), error = el("input", {type: "number", id: `e${t}`, min: 0, step: "any"});
    card.append(el("h3", {}, el("span", {class: "swatch", style: `background:${table.colour}`}), table.name), el("p", {text: `${table.about}: ${table.mechanism}`}));
    if (table.scale !== null) {
      const [least, most] = reach(t);
      card.append(slider(table.split ? "noise ×" : table.scale, least, most, () => state.scales[t], v => putScale(t, v)));
      const label = el("label", {for: `e${t}`});
      error.addEventListener("change", () => { if (Number(error.value) > 0) putError(t, Number(error.value)); update(); });
      card.append(el("div", {class: "row"}, label, el("span"), error));
      listeners.push(() => { label.textContent = `mean error at ${digits(tableOf(t).middle)}`; });
    }
    card.append(facts);
    document.getElementById("tables").append(card);
    return {facts, error};
  });
  const fact = (list, name, value, kind = "") => list.append(el("dt", {text: name}), el("dd", {text: value, class: kind}));

  const NS = "http://www.w3.org/2000/svg";
  const draw = (name, attributes, text) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const power = n => n < -3 || n > 4 ? `10${[...String(n)].map(c => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "⁻").join("")}` : Number(`1e${n}`).toLocaleString("en-US");
  const picture = (measure, policies) => {
    const W = 640, H = 380, L = 56, R = 176, T = 14, B = 44, X = [0, 6], points = 120;
    const sizes = [...new Set([...Array(points + 1).keys()].map(i => Math.round(10 ** (X[0] + (X[1] - X[0]) * i / points))))];
    const lines = policies.map(p => ({p, at: sizes.map(x => [x, loss(D.families[p.family], scaleOf(p), x)])}));
    const values = lines.flatMap(l => l.at.map(a => a[1])).filter(v => v > 0);
    const Y = [Math.max(-6, Math.floor(Math.log10(Math.min(...values)))), Math.min(7, Math.ceil(Math.log10(Math.max(...values))))];
    if (Y[1] <= Y[0]) Y[1] = Y[0] + 1;
    const px = x => L + (Math.log10(x) - X[0]) / (X[1] - X[0]) * (W - L - R);
    const py = y => T + (Y[1] - Math.min(Math.max(Math.log10(y), Y[0]), Y[1])) / (Y[1] - Y[0]) * (H - T - B);
    const said = lines.map(l => `${D.tables[l.p.table].name}${l.p.part ? ` (${l.p.part})` : ""}: ${digits(l.at[sizes.findIndex(x => x >= 100)][1])} at ${sizes.find(x => x >= 100)}`).join("; ");
    const svg = draw("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Loss ρ by the record's ${measure}. ${said}`});
    for (let n = X[0]; n <= X[1]; n++) svg.append(draw("line", {class: "grid", x1: px(10 ** n), x2: px(10 ** n), y1: T, y2: H - B}),
      draw("text", {x: px(10 ** n), y: H - B + 16, "text-anchor": "middle", class: "soft"}, power(n)));
    const every = Math.ceil((Y[1] - Y[0]) / 8);
    for (let n = Y[0]; n <= Y[1]; n += every) svg.append(draw("line", {class: "grid", x1: L, x2: W - R, y1: py(10 ** n), y2: py(10 ** n)}),
      draw("text", {x: L - 6, y: py(10 ** n) + 4, "text-anchor": "end", class: "soft"}, power(n)));
    svg.append(draw("text", {x: (L + W - R) / 2, y: H - 6, "text-anchor": "middle"}, `the record's ${measure}`), draw("text", {x: L + 5, y: T + 11, class: "soft"}, "ρ"));
    state.limits.forEach(l => { const x = l.values[measure]; if (x >= 1 && x <= 10 ** X[1]) svg.append(draw("line", {class: "at", x1: px(x), x2: px(x), y1: T, y2: H - B})); });
    const labels = [];
    lines.forEach(l => {
      const shown = l.at.filter(a => a[1] >= 10 ** Y[0]), path = shown.map(a => `${px(a[0]).toFixed(1)},${py(a[1]).toFixed(1)}`).join(" ");
      svg.append(draw("polyline", {class: "curve", points: path, stroke: D.families[l.p.family].colour, "stroke-dasharray": D.families[l.p.family].dash}));
      if (shown.length) labels.push({y: py(shown[shown.length - 1][1]), text: D.tables[l.p.table].name + (l.p.part ? ` ${l.p.part}` : "")});
    });
    if (labels.length > 12) labels.length = 12;
    labels.sort((a, b) => a.y - b.y).forEach((label, i) => {
      label.y = Math.max(label.y, i ? labels[i - 1].y + 13 : T + 4);
      svg.append(draw("text", {x: W - R + 6, y: label.y + 4}, label.text.length > 25 ? `${label.text.slice(0, 24)}…` : label.text));
    });
    return svg;
  };
  const distinct = measure => {  // one curve of each noise: tables of equal noise lie on each other
    const seen = new Set();
    return D.policies.filter(p => {
      const key = p.table === null || p.measure !== measure ? null : `${p.family} ${scaleOf(p)}`;
      if (key === null || seen.has(key)) return false;
      seen.add(key);
      return true;
    });
  };

  const untouched = () => !/(^|&)[tl]\d/.test(fragment());  // then prdp explain has said how near limits stand
  const standing = l => Math.abs(l.rho / l.limit - 1) < CLOSE - 1 && untouched() ? (l.within ? "kept" : "broken")
    : !(l.rho <= l.limit) ? "broken" : l.rho * CLOSE <= l.limit ? "kept" : "near";  // losses are right to three digits
  const update = () => {
    try { refresh(); } catch (error) {
      const verdict = document.getElementById("verdict");
      verdict.className = "broken";
      verdict.textContent = error.message;
    }
  };
  const refresh = () => {
    const found = D.limits.map((_, k) => limitOf(k)), tables = D.tables.map((_, t) => tableOf(t));
    const over = found.filter(l => l.limit !== null && standing(l) === "broken").length, near = found.filter(l => standing(l) === "near").length, stated = found.filter(l => l.limit !== null).length;
    const verdict = document.getElementById("verdict"), cells = tables.reduce((n, t) => n + t.cells, 0);
    const bad = tables.reduce((n, t) => n + t.cells * t.unusable, 0);
    const all = stated + D.left_out, unknown = (near ? `; ${near} reached, as far as this page can tell: see prdp explain` : "")
      + (D.left_out ? `; ${D.left_out} not recomputed here: see prdp explain` : "");
    verdict.className = over ? "broken" : near || D.left_out || !stated ? "unknown" : "";
    verdict.replaceChildren((!all ? "The plan states no limit" : over ? `${over} of ${all} limits broken` : `${stated - near} of ${all} limits kept`) + unknown,
      el("small", {text: `${found.map((l, k) => `limit ${k + 1}: ρ ${bound(l.rho)}${l.limit === null ? "" : ` of ${digits(l.limit)}`}`).join(" · ")} · ${share(cells ? bad / cells : 0)} of non-empty cells unusable`}));
    found.forEach((l, k) => {
      const {bar, told} = limitCards[k], end = Math.max(l.rho, l.limit ?? 0) * 1.02;
      told.replaceChildren("loses ", el("b", {text: `ρ ${bound(l.rho)}`}), ...(l.limit === null ? [] : [` of ${digits(l.limit)}: `,
        el("span", standing(l) === "near" ? {text: "reached: see prdp explain"} : standing(l) === "kept" ? {class: "kept", text: `kept, ${share(Math.max(0, 1 - l.rho / l.limit))} left`} : {class: "over", text: `broken by ${share(Math.max(0, l.rho / l.limit - 1))}`})]));
      bar.replaceChildren();
      const said = [];
      for (const [t, rho] of [...l.worst].sort((a, b) => b[1] - a[1])) {
        const name = t === null ? D.test : D.tables[t].name;
        bar.append(el("i", {class: rho > 0.02 * end ? "wide-part" : "", style: `width:${100 * rho / end}%;background:${t === null ? "#777" : D.tables[t].colour}`, title: `${name}: ρ ${bound(rho)}`}));
        if (said.length < 6) said.push(`${name} ${bound(rho)}`);
      }
      if (l.limit !== null) bar.append(el("b", {style: `left:calc(${100 * l.limit / end}% - 1px)`, title: "the limit"}));
      bar.setAttribute("aria-label", `of the total: ${said.join(", ")}`);
    });
    tables.forEach((each, t) => {
      const {facts, error} = tableCards[t];
      if (document.activeElement !== error) error.value = isFinite(each.mean) ? Number(each.mean.toPrecision(4)) : "";
      facts.replaceChildren();
      fact(facts, `standard error at ${digits(each.middle)}`, digits(each.standard));
      found.forEach((l, k) => fact(facts, `share of limit ${k + 1}`, `ρ ${bound(l.tables[t])}, ${share(l.tables[t] / (l.rho || 1))}`));
      fact(facts, "unusable non-empty cells", `${share(each.unusable)} of ${each.cells.toLocaleString("en-US")}`, each.unusable > 0.5 ? "over" : "");
    });
    const measures = [...new Set(D.policies.map(p => p.measure).filter(Boolean))];
    document.getElementById("curves").replaceChildren(...measures.map(m => picture(m, distinct(m))));
    const last = Math.max(0, ...tables.map(t => t.rows.reduce((n, r, i) => r.cells ? i : n, 0)));
    const head = el("tr", {}, el("th", {text: "table"}), ...CLASSES.slice(0, last + 1).map(c => el("th", {class: "n", text: `from ${c.toLocaleString("en-US")}`})));
    document.getElementById("errors").replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...tables.map((each, t) =>
      el("tr", {}, el("td", {text: D.tables[t].name}), ...each.rows.slice(0, last + 1).map(r => {
        if (!r.cells) return el("td", {class: "n none", text: "–"});
        const relative = r.sum / r.cells, bad = !(relative <= state.usable);
        return el("td", {class: bad ? "n bad" : "n", text: `${bad ? "✕ " : ""}${share(relative)}`, title: `${r.cells.toLocaleString("en-US")} cells`});
      }))))));
    document.getElementById("yaml").textContent = yaml();
    const usable = document.getElementById("usable");
    usable.value = Math.log(state.usable / 0.01) / Math.log(1 / 0.01);
    document.getElementById("usable-value").textContent = share(state.usable);
    usable.setAttribute("aria-valuetext", share(state.usable));
    listeners.forEach(each => each());
    try { history.replaceState(null, "", "#" + fragment()); } catch { /* a page shown in a frame keeps its address */ }
  };
  document.getElementById("usable").addEventListener("input", event => {
    state.usable = Number((0.01 * Math.pow(100, Number(event.target.value))).toPrecision(2)); update();
  });
  document.getElementById("reset").addEventListener("click", () => { state = fresh(); update(); });
  document.getElementById("save").addEventListener("click", () => {
    const link = el("a", {download: D.file.replace(/(\.ya?ml)?$/, "-tried.yaml"), href: URL.createObjectURL(new Blob([yaml()], {type: "application/yaml"}))});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  window.addEventListener("hashchange", () => { set(location.hash.slice(1)); update(); });
  set(location.hash.slice(1));
  update();
  return {set, figures, show: update};
})();
