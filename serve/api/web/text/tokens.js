// The tokens of a reply, marked by how likely they were, and the table of what else each might have been.

import { $, make } from "../dom.js";

// The lower ends of the classes of probability, p0 to p4. The legend in index.html names the same.
const LOWEST = [0.8, 0.5, 0.25, 0.08, 0];

export function tokenElement(entry) {
  const p = Math.exp(entry.logprob);
  const span = make("span", { class: `token p${LOWEST.findIndex((least) => p >= least)}` }, entry.text);
  span.entry = entry;
  return span;
}

function showTip(span) {
  const { name, id, logprob, top } = span.entry;
  const rows = top.some((other) => other[2] === id) ? top : [...top, [name, logprob, id]];
  const table = make("table");
  for (const [other, value, otherId] of [...rows].sort((a, b) => b[1] - a[1])) {
    const cells = [visible(other), `${(100 * Math.exp(value)).toFixed(1)} %`].map((text) => make("td", {}, text));
    table.append(make("tr", { class: otherId === id ? "picked" : "" }, ...cells));
  }
  const tip = $("tip");
  tip.replaceChildren(table);
  tip.hidden = false;
  const box = span.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : Math.max(8, box.top - tip.offsetHeight - 6)}px`;
}

export function hideTip() {
  $("tip").hidden = true;
  document.querySelector(".token.chosen")?.classList.remove("chosen");
}

function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "·") || "∅";
}

function choose(span) {
  hideTip();
  if (!span) return;
  span.classList.add("chosen");
  span.scrollIntoView({ block: "nearest" });
  showTip(span);
}

function step(by) {
  const tokens = [...document.querySelectorAll(".token")].filter((span) => span.textContent);
  if (!tokens.length) return;
  const at = tokens.indexOf(document.querySelector(".token.chosen"));
  const next = at < 0 ? (by > 0 ? 0 : tokens.length - 1) : Math.min(Math.max(at + by, 0), tokens.length - 1);
  choose(tokens[next]);
}

// The table follows the mouse, a tap, and the arrow keys while the text itself has the focus.
export function listen(output) {
  output.addEventListener("mouseover", (event) => {
    if (event.target.entry) showTip(event.target);
  });
  output.addEventListener("mouseout", hideTip);
  output.addEventListener("click", (event) => choose(event.target.entry ? event.target : null));
  output.addEventListener("scroll", () => { if (!document.querySelector(".token.chosen")) hideTip(); });
  output.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target !== output) return;
    event.preventDefault();
    step(by);
  });
  output.addEventListener("blur", hideTip);
}
