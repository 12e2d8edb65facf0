"use strict";
// What to draw of the page's own data (#data), and on which scales. The page loads nothing and sends nothing.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 14, right: 14, bottom: 34, left: 58 };
const KEYS = ["x", "y", "range", "smooth", "reload"];

// -- choices; kept in the address, so that a reloaded page looks the same -------------------------------------

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

// The text of a time on the axis; ticks are `step` seconds apart.
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
  speed: grouped,
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

// Every chart with its series for each run: {points (the part of a run that holds x), values, low, high, style, label}.
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
    return [{ id: "loss", title: "Loss", unit: data.unit, kind: "loss", large: true, scale: state.y, series: loss }, bits, ...rest];
  }
  const unit = data.comparable ? data.unit : `${data.unit}; not comparable`;
  return [
    { ...bits, large: true },
    { id: "validation", title: "Validation loss", unit, kind: "loss", scale: state.y, series: validation("loss") },
    { id: "loss", title: "Training loss, smoothed", unit, kind: "loss", scale: state.y, series: training(false) },
    ...rest,
  ];
}

const usable = (value, log) => value !== null && value !== undefined && (!log || value > 0);

// The range of the horizontal axis over all runs.
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
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step || 0); // not -0
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
