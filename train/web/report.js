"use strict";
// Draws the curves of the page's own data (#data). No resource from elsewhere, nothing is sent anywhere.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 14, right: 14, bottom: 34, left: 58 };
const KEYS = ["x", "y", "range", "smooth", "reload"];

// -- what is chosen; kept in the address, so that a reloaded page looks the same ------------------------------

const state = { x: data.x, y: "log", range: "all", smooth: "10", reload: "1", zoom: null };
for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
  if (KEYS.includes(key)) state[key] = value;
}
if (!["step", "tokens", "time"].includes(state.x)) state.x = data.x;
if (!["log", "linear"].includes(state.y)) state.y = "log";
if (!["all", "half", "tenth"].includes(state.range)) state.range = "all";
state.smooth = String(Math.min(100, Math.max(0, Number(state.smooth) || 0)));

function remember() {
  const chosen = new URLSearchParams(KEYS.map((key) => [key, state[key]]));
  try {
    history.replaceState(null, "", `#${chosen}`);
  } catch {
    // some browsers refuse this for local files
  }
}

// -- numbers as people read them ------------------------------------------------------------------------------

const grouped = (value) => Math.round(value).toLocaleString("en-US");

function short(value) {
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "K"]]) {
    if (Math.abs(value) >= size) return `${Number((value / (letter === "K" ? 1e3 : size)).toPrecision(4))}${letter}`;
  }
  return String(Number(value.toPrecision(4)));
}

function clock(seconds) {
  const whole = Math.round(seconds);
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600)];
  const two = (n) => String(n).padStart(2, "0");
  if (hours >= 48) return `${days} days ${hours % 24} h`;
  return `${hours}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

// A time on the axis, whose ticks are `step` seconds apart.
function tickClock(seconds, step, most) {
  if (most >= 3 * 86400 && step >= 43200) return `${Number((seconds / 86400).toFixed(1))} d`;
  if (most >= 2 * 3600 && step >= 360) return `${Number((seconds / 3600).toFixed(2))} h`;
  if (most >= 2 * 3600) return clock(seconds);
  return most >= 180 ? `${Number((seconds / 60).toFixed(2))} min` : `${Math.round(seconds)} s`;
}

const X = {
  step: { label: "optimizer steps", tick: short },
  tokens: { label: "training tokens", tick: short },
  time: { label: "training time", tick: tickClock },
};
const FORMAT = {
  loss: (value) => value.toFixed(value < 10 ? 4 : 2),
  rate: (value) => value.toExponential(2),
  norm: (value) => String(Number(value.toPrecision(3))),
  speed: grouped,
  memory: (value) => value.toFixed(2),
  percent: (value) => (100 * value).toFixed(value < 0.01 ? 2 : 1),
};
const TICK = {
  rate: (value) => (value === 0 ? "0" : value.toExponential(Number.isInteger(Number((value / 10 ** Math.floor(Math.log10(value))).toPrecision(3))) ? 0 : 1)),
  speed: short,
  percent: (value) => String(Number((100 * value).toPrecision(3))),
};
const tick = (kind, value) => (TICK[kind] ? TICK[kind](value) : String(Number(value.toPrecision(4))));

// -- curves ---------------------------------------------------------------------------------------------------

// A centred mean with Gaussian weights. Near the start, where a loss falls steeply, the window narrows; it never lags.
function smoothed(values, amount) {
  const sigma = (Number(amount) / 100) * 0.1 * values.length;
  if (sigma < 0.3) return values;
  const out = new Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const width = Math.min(sigma, i / 2);
    if (width < 0.3 || values[i] === null) {
      out[i] = values[i];
      continue;
    }
    let [sum, weights] = [0, 0];
    const reach = Math.ceil(2.5 * width);
    for (let j = Math.max(0, i - reach); j <= Math.min(values.length - 1, i + reach); j++) {
      if (values[j] === null) continue;
      const weight = Math.exp(-0.5 * ((j - i) / width) ** 2);
      sum += weight * values[j];
      weights += weight;
    }
    out[i] = sum / weights;
  }
  return out;
}

// Every chart: its series per run, each {points (the part of a run that holds x), values, low, high, style, label}.
function charts() {
  const several = data.runs.length > 1;
  const each = (make) => data.runs.flatMap((run, index) => {
    const name = several ? run.name : null;
    return make(run, several ? `run-${index % 8}` : null, name);
  });
  const plain = (field, style, label, extremes) => each((run, own, name) => [{
    points: run.train, values: several ? smoothed(run.train[field], state.smooth) : run.train[field],
    low: several ? null : run.train[extremes && `${field}_low`], high: several ? null : run.train[extremes && `${field}_high`],
    style: own || style, label: name || label, line: true,
  }]);
  const validation = (field, label) => each((run, own, name) => [{
    points: run.val, values: run.val[field], style: own || "second", label: name || label, line: true, dots: true,
  }]);
  const training = (thin) => each((run, own, name) => [
    ...(thin ? [{
      points: run.train, values: run.train.loss, low: run.train.loss_low, high: run.train.loss_high,
      style: "faint", label: run.stride > 1 ? `training, means of ${run.stride} records` : "training, each record", line: true, thin: true,
    }] : []),
    { points: run.train, values: smoothed(run.train.loss, state.smooth), style: own || "first", label: name || "training, smoothed", line: true },
  ]);
  const bits = { id: "bits", title: "Bits per byte", unit: "bits per byte of validation text", kind: "loss", scale: state.y, series: validation("bpb", "validation") };
  const rest = [
    { id: "rate", title: "Learning rate", unit: "of the last step of a record", kind: "rate", zero: true, series: plain("lr", "first", "learning rate") },
    { id: "norm", title: "Gradient norm", unit: "global L2 norm before clipping, log axis", kind: "norm", scale: "log", series: plain("grad", "first", "gradient norm", true) },
    { id: "speed", title: "Speed", unit: "tokens/s of the steps of a record", kind: "speed", zero: true, series: plain("speed", "third", "tokens/s", true) },
    { id: "memory", title: "Memory", unit: "resident, GiB", kind: "memory", zero: true, series: plain("memory", "third", "resident memory") },
    { id: "wait", title: "Waiting for data", unit: "% of the steps' time", kind: "percent", zero: true, least: 0.01, series: plain("wait", "third", "waiting") },
  ];
  if (!several) {
    const loss = [...training(true), ...validation("loss", "validation")];
    return [{ id: "loss", title: "Loss", unit: "nats per token", kind: "loss", large: true, scale: state.y, series: loss }, bits, ...rest];
  }
  return [
    { ...bits, large: true },
    { id: "validation", title: "Validation loss", unit: data.comparable ? "nats per token" : "nats per token: other tokens in each run", kind: "loss", scale: state.y, series: validation("loss") },
    { id: "loss", title: "Training loss, smoothed", unit: data.comparable ? "nats per token" : "nats per token: other tokens in each run", kind: "loss", scale: state.y, series: training(false) },
    ...rest,
  ];
}

const usable = (value, log) => value !== null && value !== undefined && (!log || value > 0);

// Ends of the horizontal axis, over all runs.
function domainX() {
  let [low, high] = [Infinity, -Infinity];
  for (const run of data.runs) {
    for (const part of [run.train, run.val]) {
      for (const value of part[state.x]) {
        if (value === null) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
  }
  if (low > high) return [0, 1];
  const all = [Math.min(low, 0.02 * high), high === low ? high + 1 : high];
  if (state.zoom) return state.zoom;
  const share = { all: 0, half: 0.5, tenth: 0.9 }[state.range];
  return share ? [all[0] + share * (all[1] - all[0]), all[1]] : [Math.min(all[0], 0), all[1]];
}

function domainY(chart, [left, right]) {
  const log = chart.scale === "log";
  let [low, high] = [Infinity, -Infinity];
  for (const one of chart.series) {
    one.values.forEach((value, i) => {
      const x = one.points[state.x][i];
      if (!usable(value, log) || x === null || x < left || x > right) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
      if (one.high && !one.thin && usable(one.high[i], log)) high = Math.max(high, one.high[i]);
    });
  }
  if (low > high) return null;
  if (chart.zero) return [0, Math.max(high * 1.08, chart.least || 0) || 1];
  if (log) {
    const room = Math.max(0.04 * Math.log(high / low), 0.002);
    return [low * Math.exp(-room), high * Math.exp(room)];
  }
  const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
  return [low - room, high + room];
}

function linearTicks(low, high, n, bases = [1, 2, 2.5, 5, 10]) {
  const rough = (high - low) / n;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * bases.find((base) => base * size >= rough * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

function logTicks(low, high, n) {
  for (const bases of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const base of bases) {
        const value = base * 10 ** power;
        if (value >= low && value <= high) found.push(value);
      }
    }
    if (found.length >= n - 1) return found.filter((_, i) => i % Math.ceil(found.length / (2 * n)) === 0);
  }
  return linearTicks(low, high, n);
}

function timeTicks(low, high, n) {
  const units = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];
  const step = units.find((unit) => (high - low) / unit <= n) || linearTicks(0, high - low, n)[1];
  const out = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) out.push(i * step);
  return out;
}

// -- drawing --------------------------------------------------------------------------------------------------

function make(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function element(parent, name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

const views = new Map(); // chart id -> what is on the page and how it is scaled

function frame(chart) {
  const figure = element($("charts"), "figure", chart.large ? "large" : "");
  figure.id = `chart-${chart.id}`;
  const caption = element(figure, "figcaption", "", chart.title);
  element(caption, "small", "", chart.unit);
  const legend = element(figure, "ul", "legend");
  const plot = element(figure, "div", "plot");
  const svg = make(plot, "svg", { tabindex: "0", role: "img" });
  const view = { figure, legend, plot, svg, id: chart.id };
  views.set(chart.id, view);
  listen(view);
  return view;
}

function key(item, style) {
  const swatch = make(item, "svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
  make(swatch, "line", { class: style, x1: 0, y1: 5, x2: 26, y2: 5 });
}

function draw(chart, limits) {
  const view = views.get(chart.id) || frame(chart);
  view.chart = chart;
  const width = Math.max(220, view.plot.clientWidth);
  const height = chart.large ? (width < 560 ? 280 : 360) : 210;
  const { svg } = view;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const y = domainY(chart, limits);
  view.legend.replaceChildren();
  if (!y) {
    view.x = null;
    make(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing written down yet");
    svg.setAttribute("aria-label", `${chart.title}: nothing written down yet`);
    return;
  }
  const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right, MARGIN.top, height - MARGIN.bottom];
  const log = chart.scale === "log";
  const f = log ? Math.log : (value) => value;
  view.x = (value) => left + ((value - limits[0]) / (limits[1] - limits[0])) * (right - left);
  view.y = (value) => bottom - ((f(value) - f(y[0])) / (f(y[1]) - f(y[0]))) * (bottom - top);
  view.back = (pixel) => limits[0] + ((pixel - left) / (right - left)) * (limits[1] - limits[0]);
  Object.assign(view, { left, right, top, bottom, width, log });

  // Axes.
  for (const value of (log ? logTicks : linearTicks)(y[0], y[1], chart.large ? 7 : 4)) {
    const at = view.y(value);
    make(svg, "line", { class: "gridline", x1: left, x2: right, y1: at, y2: at });
    make(svg, "text", { x: left - 8, y: at + 4, "text-anchor": "end" }, tick(chart.kind, value));
  }
  const n = Math.max(2, Math.floor((right - left) / 90));
  const places = (state.x === "time" ? timeTicks : linearTicks)(limits[0], limits[1], n);
  for (const value of places) {
    const at = view.x(value);
    make(svg, "line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 });
    const anchor = at > right - 20 ? "end" : "middle";
    make(svg, "text", { x: at, y: bottom + 17, "text-anchor": anchor }, X[state.x].tick(value, places[1] - places[0], limits[1]));
  }
  make(svg, "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
  make(svg, "text", { x: right, y: height - 3, "text-anchor": "end" }, X[state.x].label);
  const clip = make(svg, "clipPath", { id: `clip-${chart.id}` });
  make(clip, "rect", { x: left, y: top - 4, width: right - left + 6, height: bottom - top + 4 });
  const inside = make(svg, "g", { "clip-path": `url(#clip-${chart.id})` });

  for (const event of happened(limits)) {
    const at = view.x(event.x);
    const serious = event.serious ? " serious" : "";
    make(inside, "line", { class: `event${serious}`, x1: at, x2: at, y1: top, y2: bottom });
    make(inside, "path", { class: `flag${serious}`, d: `M${at - 4},${top - 4}h8l-4,7z` });
  }
  for (const one of chart.series) curve(view, inside, one, log);

  // What the last value is, beside a single curve.
  svg.setAttribute("aria-label", label(chart));
  view.cursor = make(svg, "g", {});
  view.values = chart.series.map((one) => {
    const item = element(view.legend, "li");
    key(item, one.style);
    element(item, "span", "", one.label);
    return element(item, "b");
  });
  legends(view, null);
}

function label(chart) {
  const ends = chart.series.filter((one) => !one.thin).map((one) => {
    const known = one.values.filter((value) => value !== null);
    return known.length ? `${one.label} from ${FORMAT[chart.kind](known[0])} to ${FORMAT[chart.kind](known.at(-1))}` : "";
  });
  return `${chart.title}, ${chart.unit}: ${ends.filter(Boolean).join("; ")}. Left and right arrow keys read the values.`;
}

function curve(view, parent, one, log) {
  const xs = one.points[state.x];
  const at = (i, value) => `${view.x(xs[i]).toFixed(1)},${view.y(value).toFixed(1)}`;
  if (one.low && one.high) {
    let [up, down] = [[], []];
    const close = () => {
      if (up.length) make(parent, "path", { class: `band ${one.style}`, d: `M${up.join("L")}L${down.reverse().join("L")}Z` });
      [up, down] = [[], []];
    };
    one.high.forEach((value, i) => {
      if (!usable(value, log) || !usable(one.low[i], log) || xs[i] === null) return close();
      up.push(at(i, value));
      down.push(at(i, one.low[i]));
    });
    close();
  }
  let [path, pen] = ["", "M"];
  one.values.forEach((value, i) => {
    if (!usable(value, log) || xs[i] === null) {
      pen = "M";
      return;
    }
    path += pen + at(i, value);
    pen = "L";
  });
  make(parent, "path", { class: `line ${one.thin ? "thin " : ""}${one.style}`, d: path || "M0,0" });
  if (!one.dots) return;
  const seen = one.values.filter((value) => value !== null).length;
  one.values.forEach((value, i) => {
    if (usable(value, log) && xs[i] !== null && (seen < 120 || i === one.values.length - 1)) {
      make(parent, "circle", { class: `dot ${one.style}`, cx: view.x(xs[i]), cy: view.y(value), r: seen > 60 ? 2 : 3 });
    }
  });
}

function happened([left, right]) {
  if (data.runs.length > 1) return [];
  return data.runs[0].events
    .map((event) => ({ ...event, x: event[state.x] }))
    .filter((event) => event.x !== null && event.x >= left && event.x <= right);
}

// -- reading values -------------------------------------------------------------------------------------------

function nearest(xs, x) {
  let best = null;
  for (let i = 0; i < xs.length; i++) {
    if (xs[i] !== null && (best === null || Math.abs(xs[i] - x) < Math.abs(xs[best] - x))) best = i;
  }
  return best;
}

// The index whose value a curve shows at x, or null where the curve is not. Validations are far apart: theirs holds
// until the next.
function indexAt(one, x) {
  const i = nearest(one.points[state.x], x);
  if (i === null || one.values[i] === null) return null;
  const xs = one.points[state.x];
  const span = xs.at(-1) - xs[0] || 1;
  return x > xs.at(-1) + 0.02 * span || (!one.dots && x < xs[0] - 0.02 * span) ? null : i;
}

function legends(view, x) {
  view.chart.series.forEach((one, k) => {
    let value = null;
    if (x !== null) {
      const i = indexAt(one, x);
      value = i === null ? null : one.values[i];
    } else {
      value = one.values.filter((each) => each !== null).at(-1) ?? null;
    }
    view.values[k].textContent = value === null ? "–" : FORMAT[view.chart.kind](value);
  });
}

let at = null; // where the cursor stands, in the unit of the horizontal axis

function cursor(x, here) {
  at = x;
  for (const view of views.values()) {
    if (!view.x) continue;
    view.cursor.replaceChildren();
    legends(view, x);
    if (x === null) continue;
    const pixel = view.x(x);
    make(view.cursor, "line", { class: "guide", x1: pixel, x2: pixel, y1: view.top, y2: view.bottom });
    for (const one of view.chart.series) {
      const i = indexAt(one, x);
      if (i === null || one.thin || !usable(one.values[i], view.log)) continue;
      const [cx, cy] = [view.x(one.points[state.x][i]), view.y(one.values[i])];
      if (cx < view.left - 1 || cx > view.right + 1) continue;
      make(view.cursor, "circle", { class: `dot ${one.style}`, cx, cy, r: 4 });
    }
  }
  document.getElementById("tip")?.remove();
  if (x !== null && here) tip(here, x);
}

function place(x) {
  const texts = [];
  for (const run of data.runs) {
    const i = nearest(run.train[state.x], x);
    if (i === null) continue;
    const { step, tokens, time } = run.train;
    const from = run.stride > 1 ? "about " : "";
    texts.push(`${from}step ${grouped(step[i])} · ${tokens[i] < 1e6 ? grouped(tokens[i] || 0) : short(tokens[i])} tokens · ${time[i] === null ? "" : clock(time[i])}`);
  }
  return data.runs.length === 1 ? texts[0] || "" : `${X[state.x].label}: ${state.x === "time" ? clock(x) : x < 1e6 ? grouped(x) : short(x)}`;
}

function tip(view, x) {
  const box = element(view.plot, "div");
  box.id = "tip";
  element(box, "p", "", place(x));
  const table = element(box, "table");
  for (const one of view.chart.series) {
    const i = indexAt(one, x);
    if (i === null) continue;
    const row = element(table, "tr");
    const validated = one.dots ? ` at step ${grouped(one.points.step[i])}` : "";
    element(row, "td", "", one.label + validated);
    element(row, "td", "", FORMAT[view.chart.kind](one.values[i]));
    if (one.high && one.values[i] !== one.high[i]) {
      const extremes = element(table, "tr");
      element(extremes, "td", "", "least to most");
      element(extremes, "td", "", `${FORMAT[view.chart.kind](one.low[i])} to ${FORMAT[view.chart.kind](one.high[i])}`);
    }
  }
  const limits = domainX();
  const near = 0.012 * (limits[1] - limits[0]);
  for (const event of happened(limits)) {
    if (Math.abs(event.x - x) <= near) element(box, "p", "happened", `step ${grouped(event.step)}: ${event.text}`);
  }
  const pixel = view.x(x);
  const shift = pixel > view.width / 2 ? pixel - box.offsetWidth - 14 : pixel + 14;
  box.style.transform = `translate(${Math.max(0, Math.min(shift, view.width - box.offsetWidth))}px, ${view.top}px)`;
  $("readout").textContent = box.innerText;
}

// Every place where the curves of a chart have a value, in order: the stations of the keyboard.
function stations(view) {
  const [left, right] = domainX();
  const found = new Set();
  for (const one of view.chart.series) {
    for (const x of one.points[state.x]) if (x !== null && x >= left && x <= right) found.add(x);
  }
  return [...found].sort((a, b) => a - b);
}

function listen(view) {
  const { svg } = view;
  let from = null;
  const where = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(view.right, Math.max(view.left, event.clientX - box.left));
  };
  svg.addEventListener("pointerdown", (event) => {
    if (!view.x) return;
    if (event.pointerType === "mouse" && event.button === 0) {
      from = where(event);
      svg.setPointerCapture(event.pointerId);
    }
    cursor(view.back(where(event)), view);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!view.x) return;
    cursor(view.back(where(event)), view);
    if (from === null) return;
    const to = where(event);
    const box = { x: Math.min(from, to), width: Math.abs(to - from), y: view.top, height: view.bottom - view.top };
    if (box.width > 4) make(view.cursor, "rect", { class: "brush", ...box });
  });
  svg.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const ends = [view.back(from), view.back(where(event))].sort((a, b) => a - b);
    const wide = Math.abs(where(event) - from) > 8;
    from = null;
    if (wide) {
      state.zoom = ends;
      redraw();
    }
  });
  svg.addEventListener("pointerleave", (event) => {
    if (from === null && event.pointerType === "mouse") cursor(null);
  });
  svg.addEventListener("dblclick", whole);
  svg.addEventListener("blur", () => cursor(null));
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
    if (!view.x || !(event.key in moves)) return;
    event.preventDefault();
    const all = stations(view);
    if (!all.length) return;
    const last = all.length - 1;
    const now = at === null ? (moves[event.key] > 0 ? -1 : last + 1) : nearest(all, at);
    const by = moves[event.key] * (event.shiftKey && Math.abs(moves[event.key]) === 1 ? 10 : 1);
    cursor(all[Math.min(last, Math.max(0, now + by))], view);
  });
}

function whole() {
  state.zoom = null;
  state.range = "all";
  settle();
}

// -- the page -------------------------------------------------------------------------------------------------

function redraw() {
  const limits = domainX();
  for (const chart of charts()) draw(chart, limits);
  $("reset").hidden = !state.zoom;
  at = null;
  document.getElementById("tip")?.remove();
}

function settle() {
  for (const name of ["x", "y", "range"]) {
    for (const input of document.querySelectorAll(`input[name=${name}]`)) input.checked = input.value === state[name];
  }
  $("smooth").value = state.smooth;
  $("reload").checked = state.reload === "1";
  remember();
  redraw();
}

for (const name of ["x", "y", "range"]) {
  for (const input of document.querySelectorAll(`input[name=${name}]`)) {
    input.addEventListener("change", () => {
      state[name] = input.value;
      state.zoom = null;
      settle();
    });
  }
}
$("smooth").addEventListener("input", () => {
  state.smooth = $("smooth").value;
  remember();
  redraw();
});
$("reload").addEventListener("change", () => {
  state.reload = $("reload").checked ? "1" : "0";
  remember();
});
$("reset").addEventListener("click", whole);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (at !== null) cursor(null);
  else if (state.zoom) whole();
});

function age() {
  const written = $("written");
  const seconds = Date.now() / 1000 - Number(written.dataset.at);
  if (seconds < 0 || !Number.isFinite(seconds)) return;
  const ago = seconds < 90 ? "a moment" : seconds < 5400 ? `${Math.round(seconds / 60)} minutes`
    : seconds < 172800 ? `${Math.round(seconds / 3600)} hours` : `${Math.round(seconds / 86400)} days`;
  written.dataset.text ??= written.textContent.replace(/\.$/, "");
  written.textContent = `${written.dataset.text}, ${ago} ago.`;
}

$("controls").hidden = false;
$("hint").hidden = false;
age();
setInterval(age, 30000);
settle();
let drawn = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === drawn) return; // a phone's address bar comes and goes
  drawn = innerWidth;
  redraw();
});
if (data.running) {
  $("reload-label").hidden = false;
  setInterval(() => {
    const busy = at !== null || state.zoom || document.hidden || String(getSelection());
    if (state.reload === "1" && !busy) location.reload();
  }, 60000);
}
document.body.dataset.ready = "yes";
