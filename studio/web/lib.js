// What every screen uses: elements, requests, figures in words, and small parts of the page.

import { h, render } from "./vendor/preact.js";
import { useEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

const html = htm.bind(h);
export { html, render, useEffect, useMemo, useRef, useState };

// The answer of studio, or an Error with its one line.
export async function api(path, values, options = {}) {
  const request = values === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values),
  };
  let response;
  try {
    response = await fetch(path, { ...request, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("Studio does not answer: is it still running? Jobs go on without it.");
  }
  const found = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Error(found.error?.message ?? found.error ?? `Studio answered with status ${response.status}.`);
  }
  return found;
}

// Follows a stream of events; `take` gets each value, or {error}. Returns what ends it. A browser has few connections for
// all tabs together, so a tab that nobody sees gives its own back.
export function follow(path, take, lost = () => {}) {
  let source = null, over = false;
  const close = () => { source?.close(); source = null; };
  const open = () => {
    if (source || over || document.hidden) return;
    source = new EventSource(path);
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.addEventListener("end", () => { over = true; close(); });
    source.onerror = lost; // the browser connects again by itself
  };
  const seen = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", seen);
  open();
  return () => { close(); document.removeEventListener("visibilitychange", seen); };
}

// Figures in words.

export function bytes(n) {
  for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (n >= unit) return `${(n / unit).toFixed(1)} ${name}`;
  return `${n} bytes`;
}

export function count(n) {
  if (n === null || n === undefined) return "?";
  for (const [unit, name] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (n >= unit) return (n / (name === " k" ? 1e3 : unit)).toFixed(1) + name;
  }
  return Math.round(n).toLocaleString("en");
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  const s = Math.round(seconds);
  const both = (first, second) => (second.startsWith("0 ") ? first : `${first} ${second}`);
  if (s >= 172800) return both(`${Math.floor(s / 86400)} days`, `${Math.floor((s % 86400) / 3600)} h`);
  if (s >= 3600) return both(`${Math.floor(s / 3600)} h`, `${Math.floor((s % 3600) / 60)} min`);
  if (s >= 600) return `${Math.round(s / 60)} min`;
  return s >= 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${s} s`;
}

export function ago(time) {
  const s = Date.now() / 1000 - time;
  return s < 60 ? "just now" : `${duration(Math.floor(s / 60) * 60).replace(/ 0 s$/, "")} ago`;
}

export const fixed = (value, digits = 3) => (value === null || value === undefined ? "?" : value.toFixed(digits));

// What a job does; those that write a run.
export const WORK = { train: "training", tune: "tuning", export: "export", types: "comparison of types" };
export const trains = (job) => job.kind === "train" || job.kind === "tune";

const FORMS = { train: "text", tune: "answers", export: "export", types: "export" };

// Parts of the page.

export const Problem = ({ text }) => (text ? html`<p class="problem" role="alert">${text}</p>` : null);

// Why a job ended, next to the way back to what was entered.
export const Why = ({ job }) => (job?.error ? html`<p class="problem" role="alert">${job.error}
  ${job.form && !["waiting", "running"].includes(job.state) && html` <a href="#/${FORMS[job.kind]}?change=${job.id}">Change what was entered</a>`}</p>` : null);

export function Copy({ text, name = "Copy" }) {
  const [said, setSaid] = useState(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch { // the browser forbids it, or, on an address without TLS, has no such thing
      setSaid(copiedByHand(text) ? "Copied" : "Select it and copy");
    }
    setTimeout(() => setSaid(null), 1500);
  };
  return html`<button type="button" class="plain small" onClick=${copy}>${said ?? name}</button>`;
}

// Copies by way of a field that is selected; whether it could.
function copiedByHand(text) {
  const field = document.createElement("textarea"), focused = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}

// A command or a path that can be copied.
export const Command = ({ text }) => html`<div class="command"><code>${text}</code><${Copy} text=${text} /></div>`;

// A button that does something that may fail: its error is shown next to it. `confirm`: a second click is needed.
export function Action({ run, children, kind = "plain small", confirm = null, disabled = false }) {
  const [state, setState] = useState({});
  const act = async () => {
    if (confirm && !state.asked) {
      setState({ asked: true });
      setTimeout(() => setState((now) => (now.asked ? {} : now)), 4000);
      return;
    }
    setState({ busy: true });
    try {
      await run();
      setState({});
    } catch (error) {
      setState({ error: error.message });
    }
  };
  return html`<span class="action">
    <button type="button" class=${kind} onClick=${act} disabled=${disabled || state.busy}>${state.asked ? confirm : children}</button>
    <${Problem} text=${state.error} />
  </span>`;
}

export function Progress({ share, label }) {
  const value = Math.round(100 * (share ?? 0));
  return html`<div class="progress" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${value}>
    <div style=${{ width: `${value}%` }}></div>
  </div>`;
}

export const Tile = ({ name, children }) => html`<div class="tile"><span class="quiet">${name}</span><b>${children}</b></div>`;

// Sets the title and puts the focus on the screen's heading, so that a reader of the screen hears where it is.
export function Heading({ children, title }) {
  const place = useRef();
  useEffect(() => {
    document.title = `${title} · slm studio`;
    place.current.focus({ preventScroll: true });
  }, [title]);
  return html`<h1 tabindex="-1" ref=${place}>${children ?? title}</h1>`;
}

// What a promise gives: {value}, {error}, or {} while it is waited for. Again where one of `keys` changes.
export function useLoaded(load, keys) {
  const [state, setState] = useState({});
  useEffect(() => {
    let current = true;
    setState({});
    load().then(
      (value) => current && setState({ value }),
      (error) => current && setState({ error: error.message }),
    );
    return () => { current = false; };
  }, keys);
  return state;
}
