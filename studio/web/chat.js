// Chat and compare: one prompt to one, two or three models, their replies next to each other.

import { api, duration, Heading, html, Problem, useEffect, useRef, useState } from "./lib.js";

const SETTINGS = [
  ["temperature", "temperature", 0.8, 0.1], ["top_p", "top-p", 0.95, 0.05], ["top_k", "top-k", 40, 1], ["min_p", "min-p", 0.05, 0.01],
  ["max_tokens", "most tokens", 256, 1], ["seed", "seed", "", 1],
];

// The objects of a streamed reply. Throws an Error with the model's own line.
async function* stream(path, values, signal) {
  const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values), signal });
  if (!response.ok) {
    const found = await response.json().catch(() => ({}));
    throw new Error(found.error?.message ?? found.error ?? `status ${response.status}`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The reply ended early.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = /^data: (.*)$/m.exec(part)?.[1];
      if (!data) continue; // a comment: the model is at work
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

const OTHERS = 4; // what it might have written instead, of each token

// Why the server ended a reply that the model had not ended.
const CUT = { max_tokens: ", cut at the most tokens", context: ", cut: its context is full", timeout_s: ", cut: its time was over" };

// Pieces of a reply: text, and where it was asked for the probability of each token (`p`), with others' (`others`).
function pieces(choice) {
  const { content, tokens, token_logprobs: logprobs, top_logprobs: top } = choice.logprobs ?? {};
  const others = (all, own) => all.filter(([text]) => text !== own).slice(0, OTHERS).map(([text, logprob]) => ({ text, p: Math.exp(logprob) }));
  if (content?.length) return content.map((each) => ({ text: each.token, p: Math.exp(each.logprob), others: others((each.top_logprobs ?? []).map((one) => [one.token, one.logprob]), each.token) }));
  if (tokens?.length) return tokens.map((text, n) => ({ text, p: Math.exp(logprobs[n]), others: others(Object.entries(top?.[n] ?? {}), text) }));
  const text = choice.delta?.content ?? choice.text;
  return text ? [{ text }] : [];
}

const percent = ({ text, p }) => `${JSON.stringify(text)} ${(100 * p).toFixed(1)} %`;

// A reply. Where it has probabilities, those of a token are told under the pointer, by a tap, or by the arrow keys.
function Reply({ turn }) {
  const [at, setAt] = useState(null);
  const found = turn.pieces;
  if (!found.some((each) => each.p !== undefined)) return html`<div class="turn">${found.map((each) => each.text)}<${Figures} turn=${turn} /></div>`;
  const key = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") setAt(null);
    if (!move) return;
    event.preventDefault();
    setAt(Math.min(found.length - 1, Math.max(0, (at ?? (move > 0 ? -1 : found.length)) + move)));
  };
  const here = at === null ? null : found[at];
  return html`<div class="turn" role="group" tabindex="0" aria-label="Reply. Arrow keys read the probability of each token." onKeyDown=${key} onPointerLeave=${() => setAt(null)}>
    ${found.map((each, n) => (each.p === undefined ? each.text : html`<span class="token ${n === at ? "here" : ""}" onPointerEnter=${() => setAt(n)} onClick=${() => setAt(n)}
      style=${{ backgroundColor: `rgba(var(--mark), ${((1 - each.p) * 0.6).toFixed(2)})` }}>${each.text}</span>`))}
    <div class="readout quiet" aria-live="polite">${here?.p === undefined ? "The stronger a token's colour, the less probable it was. Point at one." : [`${percent(here)}`, ...here.others.map(percent)].join(here.others.length ? " · " : "")}</div>
    <${Figures} turn=${turn} /></div>`;
}

const Figures = ({ turn }) => turn.figures && html`<div class="quiet">${turn.figures}</div>`;

// For how long a model is being loaded.
function Loading() {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const began = Date.now();
    const timer = setInterval(() => setSeconds(Math.round((Date.now() - began) / 1000)), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`is being loaded …${seconds > 2 ? ` ${duration(seconds)}` : ""}`;
}

function Column({ side, models, choose, remove }) {
  return html`<div class="column">
    <div class="row">
      <select class="grow" aria-label="Model ${side.n + 1}" value=${side.path} onChange=${(event) => choose(event.target.value)}>
        <option value="">choose a model</option>
        ${models.map((each) => html`<option value=${each.path}>${each.label}</option>`)}
      </select>
      ${remove && html`<button type="button" class="plain small" onClick=${remove}>Remove</button>`}
    </div>
    <p class="quiet" role="status">${side.loading ? html`<${Loading} key=${side.path} />` : side.facts ?? ""}</p>
    <${Problem} text=${side.error} />
    <div aria-live="polite">${side.turns.map((turn) => (turn.mine ? html`<div class="turn mine">${turn.text}</div>` : html`<${Reply} turn=${turn} />`))}</div>
  </div>`;
}

export function Chat({ query }) {
  const [models, setModels] = useState([]);
  const [sides, setSides] = useState([]);
  const [prompt, setPrompt] = useState("");
  const [settings, setSettings] = useState(Object.fromEntries(SETTINGS.map(([key, , value]) => [key, value])));
  const [probabilities, setProbabilities] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const abort = useRef(null), latest = useRef([]), loads = useRef({});
  latest.current = sides;
  const change = (n, values) => setSides((now) => now.map((side) => (side.n === n ? { ...side, ...(typeof values === "function" ? values(side) : values) } : side)));

  const load = async (n, path) => {
    loads.current[n]?.abort(); // of the model that was chosen before
    const own = loads.current[n] = new AbortController();
    change(n, { path, id: null, facts: null, error: null, turns: [], loading: Boolean(path) });
    if (!path) return;
    try {
      const { id, model } = await api("/api/chat/load", { path }, { signal: own.signal });
      const meta = model.meta ?? {};
      const facts = `${((meta.n_params ?? 0) / 1e6).toFixed(1)} M parameters · ${meta.chat_template ? "answers" : "continues your text"}`;
      change(n, (side) => (side.path === path ? { id, facts, chats: Boolean(meta.chat_template), loading: false } : {}));
    } catch (problem) {
      if (problem.name !== "AbortError") change(n, { error: problem.message, loading: false });
    }
  };
  const remove = (n) => {
    loads.current[n]?.abort();
    setSides((now) => now.filter((side) => side.n !== n));
  };
  const add = (path) => {
    const n = Math.max(-1, ...latest.current.map((side) => side.n)) + 1;
    const side = { n, path: "", turns: [] };
    latest.current = [...latest.current, side];
    setSides((now) => [...now, side]);
    load(n, path);
  };
  useEffect(() => {
    api("/api/home").then((home) => {
      setModels(home.models.flatMap((card) => card.ggufs.map((file) => ({ path: file.path, label: card.kind === "gguf" ? file.path : `${card.name}: ${file.name}` }))));
    }, (problem) => setError(problem.message));
    const asked = [query.a, query.b, query.c].filter(Boolean);
    if (!asked.length || (query.compare && asked.length === 1)) asked.push("");
    for (const path of asked) add(path);
    return () => [abort.current, ...Object.values(loads.current)].forEach((each) => each?.abort());
  }, []);

  const reply = async (side, text, signal) => {
    const turns = [...side.turns, { mine: true, text }];
    const place = { pieces: [] };
    change(side.n, { turns: [...turns, place], error: null });
    const wanted = Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== ""));
    const said = turns.map((turn) => ({ role: turn.mine ? "user" : "assistant", content: turn.mine ? turn.text : turn.pieces.map((each) => each.text).join("") }));
    const body = side.chats ? { messages: said, ...(probabilities ? { logprobs: true, top_logprobs: OTHERS + 1 } : {}) } : { prompt: text, ...(probabilities ? { logprobs: OTHERS + 1 } : {}) };
    const began = performance.now();
    let first = 0, cut = "";
    try {
      for await (const event of stream(`/api/chat/${side.id}/say`, { ...wanted, ...body }, signal)) {
        const choice = event.choices?.[0];
        cut ||= CUT[choice?.stopped_by] ?? "";
        const found = choice ? pieces(choice) : [];
        if (!found.length) continue;
        first ||= performance.now();
        place.pieces = [...place.pieces, ...found];
        const seconds = (performance.now() - began) / 1000;
        place.figures = `first after ${((first - began) / 1000).toFixed(2)} s, ${seconds.toFixed(1)} s so far`;
        change(side.n, { turns: [...turns, { ...place }] });
      }
      place.figures = `${((performance.now() - began) / 1000).toFixed(1)} s${cut}`;
      change(side.n, { turns: [...turns, { ...place }] });
    } catch (problem) {
      if (problem.name !== "AbortError") change(side.n, { error: problem.message });
    }
  };
  const say = async (event) => {
    event.preventDefault();
    const text = prompt.trim() ? prompt : "";
    const ready = sides.filter((side) => side.id);
    if (!text || !ready.length || busy) return;
    setPrompt("");
    setBusy(true);
    abort.current = new AbortController();
    await Promise.all(ready.map((side) => reply(side, text, abort.current.signal)));
    setBusy(false);
  };
  const key = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) say(event);
  };
  return html`<${Heading} title="Chat and compare" />
    <${Problem} text=${error} />
    ${!models.length && html`<p class="note">There is no GGUF file yet: <a href="#/export">export a model</a> first.</p>`}
    <div class="columns">${sides.map((side) => html`<${Column} key=${side.n} side=${side} models=${models} choose=${(path) => load(side.n, path)}
      remove=${sides.length > 1 ? () => remove(side.n) : null} />`)}</div>
    <form class="sheet" onSubmit=${say}>
      <label class="field"><span>Message</span><textarea id="prompt" rows="3" value=${prompt} onInput=${(event) => setPrompt(event.target.value)} onKeyDown=${key}></textarea></label>
      <div class="row">
        <button disabled=${busy || !sides.some((side) => side.id)}>Send</button>
        ${busy && html`<button type="button" class="plain" onClick=${() => abort.current.abort()}>Stop</button>`}
        ${sides.length < 3 && html`<button type="button" class="plain" onClick=${() => add("")}>Compare with another</button>`}
        <button type="button" class="plain" disabled=${busy} onClick=${() => setSides(sides.map((side) => ({ ...side, turns: [] })))}>Clear</button>
      </div>
      <details><summary>Settings</summary>
        <div class="settings">${SETTINGS.map(([name, label, , step]) => html`<label class="field"><span>${label}</span>
          <input type="number" step=${step} min="0" value=${settings[name]} onInput=${(event) => setSettings({ ...settings, [name]: event.target.value === "" ? "" : Number(event.target.value) })} /></label>`)}</div>
        <label class="check"><input type="checkbox" checked=${probabilities} onChange=${(event) => setProbabilities(event.target.checked)} />colour each token by its probability</label>
      </details>
    </form>`;
}
