// Draws what charts.js describes and handles mouse and keyboard. The page joins both files into one script.

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
    make(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing recorded yet");
    svg.setAttribute("aria-label", `${chart.title}: nothing recorded yet`);
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

// The index of the value that a curve shows at x, or null where the curve has none. Validations are far apart: each
// counts until the next one.
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

let at = null; // the cursor's position, in the unit of the horizontal axis

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

// Every x at which a curve of the chart has a value, in order: the arrow keys go from one to the next.
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

// What is opened and closed by hand stays so when the page is loaded again.
const FOLDS = `folds ${location.pathname}`;

function keepFolds() {
  const kept = {};
  try {
    Object.assign(kept, JSON.parse(sessionStorage.getItem(FOLDS)));
  } catch {
    // nothing is kept, or the browser keeps nothing for local files
  }
  const counts = new Map();
  for (const fold of document.querySelectorAll("details")) {
    const home = fold.closest("article, section");
    const title = home.querySelector("h2, h3").firstChild.textContent.trim();
    counts.set(home, (counts.get(home) ?? 0) + 1);
    const name = `${title}/${counts.get(home)}`;
    if (typeof kept[name] === "boolean") fold.open = kept[name];
    fold.addEventListener("toggle", () => {
      kept[name] = fold.open;
      try {
        sessionStorage.setItem(FOLDS, JSON.stringify(kept));
      } catch {
        // then it is closed again by the next reload
      }
    });
  }
}

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
keepFolds();
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
