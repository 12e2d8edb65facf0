// Line charts as SVG: axes, a band, values under the pointer or by the arrow keys.

import { html, useState } from "./lib.js";

const WIDTH = 640, LEFT = 74, RIGHT = 16, TOP = 8, BOTTOM = 26;

// Round numbers from low to high, about n of them, at least `least` apart.
function ticks(low, high, n, least = 0) {
  const raw = Math.max(least, (high - low) / n) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((value) => value >= raw && (!least || Number.isInteger(value)));
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}

const plain = (value) => (Math.abs(value) >= 1000 ? `${+(value / 1000).toPrecision(3)}k` : `${+value.toPrecision(3)}`);

// lines: [{name, x, y, kind}], kind one of "first", "second", "thin"; band: {x, low, high}; mark: an x that is marked;
// at: where the x axis is labelled, for a logarithmic one.
export function Chart({ title, lines, band, mark, points = [], logX = false, at: xTicks = null, height = 210, xName = "", xText = plain, yText = plain }) {
  const [at, setAt] = useState(null);
  const distinct = (values) => values.filter((value, n) => n === 0 || xText(value) !== xText(values[n - 1]));
  const shown = lines.filter((line) => line.x.length);
  const xs = [...shown.flatMap((line) => line.x), ...points.map((each) => each.x)].filter(Number.isFinite);
  const ys = [...shown.flatMap((line) => line.y), ...points.map((each) => each.y), ...(band ? [...band.low, ...band.high] : [])]
    .filter(Number.isFinite);
  if (!xs.length) return html`<figure class="chart"><figcaption>${title}</figcaption><p class="quiet">Nothing yet.</p></figure>`;
  const scale = logX ? Math.log : (value) => value;
  let [left, right] = [scale(Math.min(...xs)), scale(Math.max(...xs))];
  if (points.length) [left, right] = [left - 0.08 * (right - left || 1), right + 0.08 * (right - left || 1)]; // room for their names
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  const spare = (points.length ? 3 : 1) * (high - low || Math.abs(high) || 1) * 0.06;
  [low, high] = [low - spare, high + spare];
  const X = (value) => LEFT + (WIDTH - LEFT - RIGHT) * (right > left ? (scale(value) - left) / (right - left) : 0.5);
  const Y = (value) => TOP + (height - TOP - BOTTOM) * (1 - (value - low) / (high - low));
  const path = (x, y) => x.map((value, n) => (Number.isFinite(y[n]) ? `${X(value).toFixed(1)},${Y(y[n]).toFixed(1)}` : null))
    .filter(Boolean).join(" ");
  // A point's name stands above it, or below, or further away where another's is.
  const places = [];
  const named = [...points].sort((a, b) => a.x - b.x).map((each) => {
    const x = X(each.x), wide = 5 * each.name.length + 6;
    const free = (y) => places.every((other) => Math.abs(other.x - x) > other.wide + wide - 6 || Math.abs(other.y - y) > 14);
    const y = [-9, 18, -23, 32, -37, 46].map((by) => Y(each.y) + by).find((found) => free(found) && found > TOP + 4 && found < height - BOTTOM) ?? Y(each.y) - 9;
    places.push({ x, y, wide });
    return { ...each, px: x, py: Y(each.y), ny: y };
  });
  const main = shown[0] ?? { x: [], y: [] };
  const nearest = (line, x) => line.x.reduce((best, value, n) => (Math.abs(X(value) - x) < Math.abs(X(line.x[best]) - x) ? n : best), 0);
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    setAt(nearest(main, ((event.clientX - box.left) / box.width) * WIDTH));
  };
  const key = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") setAt(null);
    if (!move || !main.x.length) return;
    event.preventDefault();
    setAt(Math.min(main.x.length - 1, Math.max(0, (at ?? (move > 0 ? -1 : main.x.length)) + move)));
  };
  const here = at !== null && main.x.length > at ? main.x[at] : null;
  const values = here === null ? "" : [
    `${xName} ${xText(here)}`,
    ...shown.map((line) => `${line.name} ${yText(line.y[nearest(line, X(here))])}`),
  ].join(", ");
  return html`<figure class="chart">
    <figcaption>${title}
      <span class="legend">${shown.filter((line) => line.name).map((line) => html`<span class=${line.kind}>${line.name}</span>`)}</span>
    </figcaption>
    <svg viewBox="0 0 ${WIDTH} ${height}" role="img" tabindex="0" aria-label="${title}${values ? `: ${values}` : ". Arrow keys read values."}"
      onPointerMove=${point} onPointerLeave=${() => setAt(null)} onKeyDown=${key}>
      ${ticks(low, high, 4).map((value) => html`<g class="tick">
        <line x1=${LEFT} x2=${WIDTH - RIGHT} y1=${Y(value)} y2=${Y(value)} />
        <text x=${LEFT - 6} y=${Y(value) + 4} text-anchor="end">${yText(value)}</text></g>`)}
      ${distinct(xTicks ?? ticks(Math.min(...xs), Math.max(...xs), 6, xName === "step" ? 1 : 0)).map((value) => html`<text class="label" x=${X(value)} y=${height - 8} text-anchor="middle">${xText(value)}</text>`)}
      ${band && html`<polygon class="band" points="${path(band.x, band.high)} ${path([...band.x].reverse(), [...band.low].reverse())}" />`}
      ${shown.map((line) => html`<polyline class="line ${line.kind}" points=${path(line.x, line.y)} />${line.x.length === 1 && html`<circle class="dot ${line.kind}" cx=${X(line.x[0])} cy=${Y(line.y[0])} r="4" />`}`)}
      ${named.map((each) => html`<g class="point"><circle cx=${each.px} cy=${each.py} r="5" /><text x=${each.px} y=${each.ny} text-anchor="middle">${each.name}</text></g>`)}
      ${[mark, here].filter((value) => value !== null && value !== undefined).map((value) => html`<line class="guide" x1=${X(value)} x2=${X(value)} y1=${TOP} y2=${height - BOTTOM} />`)}
    </svg>
    <p class="readout quiet" aria-live="polite">${values || xName}</p>
  </figure>`;
}

// A curve without axes, for a card.
export function Sparkline({ values }) {
  if (values.length < 2) return null;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const text = values.map((value, n) => `${(120 * n) / (values.length - 1)},${34 - (30 * (value - low)) / (high - low || 1)}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 120 38" role="img" aria-label="Loss from ${values[0].toFixed(2)} to ${values.at(-1).toFixed(2)}"><polyline class="line first" points=${text} /></svg>`;
}
