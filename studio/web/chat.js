// Chat and compare: one prompt to one, two or three models, their replies next to each other.

import { api, Heading, html, Problem, useEffect, useRef, useState } from "./lib.js";

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
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// Pieces of a reply: text, and the probability of each token where it was asked for.
function pieces(choice) {
  if (choice.logprobs?.content?.length) return choice.logprobs.content.map((each) => ({ text: each.token, p: Math.exp(each.logprob) }));
  if (choice.logprobs?.tokens?.length) return choice.logprobs.tokens.map((text, n) => ({ text, p: Math.exp(choice.logprobs.token_logprobs[n]) }));
  const text = choice.delta?.content ?? choice.text;
  return text ? [{ text }] : [];
}

const Token = ({ text, p }) => (p === undefined ? text
  : html`<span class="token" title="${(100 * p).toFixed(1)} %" style=${{ backgroundColor: `rgba(var(--mark), ${((1 - p) * 0.6).toFixed(2)})` }}>${text}</span>`);

function Column({ side, models, choose, remove }) {
  return html`<div class="column">
    <div class="row">
      <select class="grow" aria-label="Model ${side.n + 1}" value=${side.path} onChange=${(event) => choose(event.target.value)}>
        <option value="">choose a model</option>
        ${models.map((each) => html`<option value=${each.path}>${each.label}</option>`)}
      </select>
      ${remove && html`<button type="button" class="plain small" onClick=${remove}>Remove</button>`}
    </div>
    <p class="quiet" role="status">${side.loading ? "is being loaded …" : side.facts ?? ""}</p>
    <${Problem} text=${side.error} />
    <div aria-live="polite">${side.turns.map((turn) => html`<div class="turn ${turn.mine ? "mine" : ""}">${turn.mine ? turn.text : turn.pieces.map((each) => html`<${Token} ...${each} />`)}
      ${turn.figures && html`<div class="quiet">${turn.figures}</div>`}</div>`)}</div>
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
  const abort = useRef(null), latest = useRef([]);
  latest.current = sides;
  const change = (n, values) => setSides((now) => now.map((side) => (side.n === n ? { ...side, ...(typeof values === "function" ? values(side) : values) } : side)));

  const load = async (n, path) => {
    change(n, { path, id: null, facts: null, error: null, turns: [], loading: Boolean(path) });
    if (!path) return;
    try {
      const { id, model } = await api("/api/chat/load", { path });
      const meta = model.meta ?? {};
      const facts = `${((meta.n_params ?? 0) / 1e6).toFixed(1)} M parameters · ${meta.chat_template ? "answers" : "continues your text"}`;
      change(n, (side) => (side.path === path ? { id, facts, chats: Boolean(meta.chat_template), loading: false } : {}));
    } catch (problem) {
      change(n, { error: problem.message, loading: false });
    }
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
    return () => abort.current?.abort();
  }, []);

  const reply = async (side, text, signal) => {
    const turns = [...side.turns, { mine: true, text }];
    const place = { pieces: [] };
    change(side.n, { turns: [...turns, place], error: null });
    const wanted = Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== ""));
    const said = turns.map((turn) => ({ role: turn.mine ? "user" : "assistant", content: turn.mine ? turn.text : turn.pieces.map((each) => each.text).join("") }));
    const body = side.chats ? { messages: said, ...(probabilities ? { logprobs: true } : {}) } : { prompt: text, ...(probabilities ? { logprobs: 1 } : {}) };
    const began = performance.now();
    let first = 0, tokens = 0;
    try {
      for await (const event of stream(`/api/chat/${side.id}/say`, { ...wanted, ...body }, signal)) {
        const found = event.choices?.[0] ? pieces(event.choices[0]) : [];
        if (!found.length) continue;
        first ||= performance.now();
        tokens += 1;
        place.pieces = [...place.pieces, ...found];
        const seconds = (performance.now() - began) / 1000;
        place.figures = `first after ${((first - began) / 1000).toFixed(2)} s, ${seconds.toFixed(1)} s so far`;
        change(side.n, { turns: [...turns, { ...place }] });
      }
      place.figures = `${((performance.now() - began) / 1000).toFixed(1)} s`;
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
      remove=${sides.length > 1 ? () => setSides(sides.filter((each) => each !== side)) : null} />`)}</div>
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
