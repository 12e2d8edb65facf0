// A model from my text: what is in it, what each time would give, and the start.

import { api, bytes, count, duration, fixed, Heading, html, Problem, Tile, useEffect, useMemo, useRef, useState } from "./lib.js";
import { Chart } from "./chart.js";
import { Files } from "./files.js";

const SHORT = { 120: "2m", 300: "5m", 600: "10m", 1200: "20m", 3600: "1h", 7200: "2h", 14400: "4h", 28800: "8h", 86400: "1d", 259200: "3d" };
const timeText = (seconds) => SHORT[Math.round(seconds)] ?? duration(seconds);

// Seconds of a time as a person types it (90s, 1h30m); null for anything else.
function secondsOf(text) {
  const plain = text.replaceAll(" ", ""), parts = [...plain.matchAll(/(\d+(?:\.\d+)?)([dhms])/g)];
  const total = parts.reduce((sum, [, number, unit]) => sum + Number(number) * { s: 1, m: 60, h: 3600, d: 86400 }[unit], 0);
  return parts.map(([part]) => part).join("") === plain ? total || null : null;
}

// A name for a run that there is not yet, from the files' name.
export function suggested(sources, taken) {
  const stem = (sources[0]?.label ?? "").replace(/(, …)? \(\d+ files\)$/, "").replace(/[/\\]+$/, "").split(/[/\\]/).at(-1).replace(/\.\w+$/, "");
  const base = stem.normalize("NFD").replace(/[^A-Za-z0-9._-]/g, "").replace(/^[^A-Za-z0-9]+/, "").slice(0, 40) || "mine";
  let name = base;
  for (let n = 2; taken.includes(name); n += 1) name = `${base}-${n}`;
  return name;
}

// Runs a command that may take long, and shows for how long it has: {value} | {error} | {seconds}. cancel() ends it.
export function useCommand() {
  const [state, setState] = useState({});
  const abort = useRef(null);
  const cancel = () => abort.current?.abort();
  useEffect(() => cancel, []);
  const run = async (path, values) => {
    cancel();
    const own = new AbortController();
    abort.current = own;
    const began = Date.now();
    const tick = setInterval(() => setState({ seconds: Math.round((Date.now() - began) / 1000) }), 1000);
    setState({ seconds: 0 });
    try {
      const value = await api(path, values, { signal: own.signal });
      clearInterval(tick);
      if (abort.current === own) setState({ value });
      return value;
    } catch (error) {
      clearInterval(tick);
      if (abort.current === own) setState(error.name === "AbortError" ? {} : { error: error.message });
      return null;
    }
  };
  return [state, run, cancel];
}

export const Waiting = ({ state, what, cancel }) => (state.seconds === undefined ? null
  : html`<p role="status">${what} (${state.seconds} s) <button type="button" class="plain small" onClick=${cancel}>Cancel</button></p>`);

const PACKED = /parquet|gz|zst|zip|pdf|docx|epub/;
const sum = (counts) => Object.values(counts ?? {}).reduce((a, b) => a + b, 0);
const named = (counts) => Object.entries(counts ?? {}).map(([why, n]) => `${why}: ${n.toLocaleString("en")}`).join(", ");

// The languages of the sampled documents, the most frequent first.
function languages(texts) {
  const counts = {};
  for (const each of texts) for (const [code, n] of Object.entries(each.languages ?? {})) counts[code] = (counts[code] ?? 0) + n;
  const all = sum(counts), names = new Intl.DisplayNames("en", { type: "language", fallback: "code" });
  const name = (code) => (code === "none" ? "no letters" : names.of(code));
  const found = Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([code, n]) => ({ name: name(code), share: n / all }));
  const shown = found.slice(0, 3).map((each) => (found.length === 1 ? each.name : `${each.name} ${Math.round(100 * each.share)} %`));
  return found.length > 3 ? [...shown, "…"] : shown;
}

// Words with commas, each on one line.
const unbroken = (all) => all.map((text, n) => html`${n > 0 && ", "}<span class="whole">${text}</span>`);

// What data-stats found in a text.
function Found({ result }) {
  const sources = Object.values(result.sources);
  const total = (key) => sources.reduce((all, each) => all + each[key], 0);
  const kinds = result.text.flatMap((each) => Object.entries(each.files?.taken ?? {}));
  const left = result.text.flatMap((each) => Object.entries(each.files?.left_out ?? {}).map(([why, n]) => {
    const names = each.files.left_out_names[why];
    return [n, `${why} (${names.join(", ")}${n > names.length ? ", …" : ""})`];
  }));
  const whole = sources.every((each) => each.complete); // otherwise the count ended after some of a large text
  // The figures of the whole are then estimates.
  const all = (key, counted) => (whole ? counted : `about ${count(result.text.reduce((sum, each) => sum + (each[key] ?? 0), 0))}`);
  const spoken = languages(result.text);
  const size = kinds.reduce((sum, [, each]) => sum + each.bytes, 0);
  const reasons = result.text.map((each) => named(each.left_out)).filter(Boolean);
  const changed = result.text.map((each) => named(each.changed)).filter(Boolean);
  return html`<section aria-label="What is in the text">
    <h2>What is in it</h2>
    <div class="tiles">
      <${Tile} name="files">${kinds.length ? unbroken(kinds.map(([kind, each]) => `${each.files} ${kind}`)) : "?"}<//>
      <${Tile} name="documents">${all("read", total("documents").toLocaleString("en"))}<//>
      <${Tile} name="text">${whole ? bytes(total("bytes")) : `about ${bytes(result.text.reduce((sum, each) => sum + each.bytes, 0))}`}<//>
      <${Tile} name="tokens (${result.vocab_size.toLocaleString("en")} ids)">${all("tokens", count(total("tokens")))}<//>
      <${Tile} name="duplicates, near duplicates">${total("exact_duplicates")}, ${total("near_duplicates")}${!whole && html` <span class="quiet">in the part that was read</span>`}<//>
      ${spoken.length > 0 && html`<${Tile} name="languages">${unbroken(spoken)}<//>`}
      <${Tile} name="a document's length (median)">${count(sources[0]?.document_tokens.median)} tokens<//>
    </div>
    ${!whole && html`<p class="note" id="sample">The text is large (${bytes(size)}${kinds.some(([kind]) => PACKED.test(kind)) ? ", packed" : ""}). Looked at: the first ${bytes(total("bytes"))}, ${total("documents").toLocaleString("en")} documents. The figures of the whole are estimated from that; the training takes from all of it.</p>`}
    ${left.map(([n, why]) => html`<p class="note">${n} ${n === 1 ? "file" : "files"} left out: ${why}</p>`)}
    ${reasons.map((text) => html`<p class="quiet">Left out: ${text}</p>`)}
    ${changed.map((text) => html`<p class="quiet">Masked or cut out: ${text}</p>`)}
    <details><summary>Three documents to read</summary>
      ${sources.flatMap((each) => each.examples).slice(0, 3).map((text) => html`<div class="text cut" tabindex="0">${text}</div>`)}
    </details>
  </section>`;
}

const NEAR = 0.25; // bits per byte up to which two texts read alike

// What text of a quality reads like: what a run of this machine wrote at about these bits per byte, or else a measured run
// on books. Where none was as good or as bad, the nearest, which says so.
function ReadsLike({ bits, samples }) {
  const far = (each) => Math.abs(each.bits_per_byte - bits);
  const nearest = (all) => all.reduce((best, each) => (!best || far(each) < far(best) ? each : best), null);
  const both = [nearest(samples.samples), nearest(samples.books)];
  const near = both.find((each) => each && far(each) <= NEAR), shown = near ?? nearest(both.filter(Boolean));
  if (!shown) return null;
  const from = `${shown.run ?? "a model of English books"} wrote at ${fixed(shown.bits_per_byte, 2)} bits per byte of ${shown.run ? "its" : "their"} text`;
  return html`<div id="reads-like"><h3>Text of about this quality</h3>
    <p class="quiet">${near ? `This is what ${from}` : `No text of this quality is kept. The nearest is a ${shown.bits_per_byte > bits ? "weaker" : "better"} model's: what ${from}`}</p>
    <div class="text cut" tabindex="0">${shown.text}</div></div>`;
}

// Also the cost of two minutes is more than nothing.
const money = (value) => (value > 0 && value < 0.1 ? value.toPrecision(1) : value.toFixed(2));

// The dial: times along the plan's curve.
function Dial({ plan, time, setTime, samples, price, setPrice }) {
  const curve = plan.curve;
  // A time that was typed may lie between two points of the dial: the figures are of the nearest.
  const wanted = secondsOf(time), off = (each) => Math.abs(Math.log(each.budget_s / wanted));
  const at = wanted ? curve.reduce((best, each, n) => (off(each) < off(curve[best]) ? n : best), 0) : 0;
  const chosen = curve[at], exact = Math.round(chosen.budget_s) === Math.round(wanted);
  const x = curve.map((each) => each.budget_s);
  return html`<section aria-label="Time">
    <h2>How long may it take?</h2>
    <div class="two">
      <div>
        <label class="field"><span>Time: ${duration(chosen.budget_s)}${exact ? "" : wanted ? `, the point nearest to ${time}` : ""}</span>
          <input id="dial" type="range" min="0" max=${curve.length - 1} step="1" value=${at} aria-valuetext=${duration(chosen.budget_s)}
            onInput=${(event) => setTime(timeText(curve[event.target.value].budget_s))} /></label>
        <${Chart} title="Predicted bits per byte (lower is better)" logX=${true} at=${x} xName="time" xText=${timeText} yText=${(value) => value.toFixed(2)} mark=${chosen.budget_s}
          lines=${[{ name: "predicted", kind: "first", x, y: curve.map((each) => each.bits_per_byte) }]}
          band=${{ x, low: curve.map((each) => each.bits_per_byte_low), high: curve.map((each) => each.bits_per_byte_high) }} />
      </div>
      <div>
        <div class="tiles">
          <${Tile} name="bits per byte">${fixed(chosen.bits_per_byte, 2)} <span class="quiet">two of three runs: ${fixed(chosen.bits_per_byte_low, 2)} to ${fixed(chosen.bits_per_byte_high, 2)}</span><//>
          <${Tile} name="parameters">${count(chosen.n_params)}<//>
          <${Tile} name="file (Q4_K_M)">${bytes(chosen.q4_k_m_bytes)}<//>
          <${Tile} name="memory">${(chosen.memory_bytes / 2 ** 30).toFixed(1)} GiB<//>
          <${Tile} name="reads">${count(chosen.tokens)} tokens <span class="quiet">the text ${chosen.epochs < 10 ? chosen.epochs.toFixed(1) : Math.round(chosen.epochs)} times</span><//>
          <${Tile} name="money">${money((chosen.seconds / 3600) * price)} <span class="quiet">at <input class="price" aria-label="Price of an hour" type="number" min="0" step="0.01" value=${price} onInput=${(event) => setPrice(Number(event.target.value))} /> an hour</span><//>
        </div>
        ${chosen.seconds < 0.9 * chosen.budget_s && html`<p class="note">With this text the run ends after ${duration(chosen.seconds)}: reading it again would teach a small model little. More text helps, more time does not.</p>`}
        <${ReadsLike} bits=${chosen.bits_per_byte} samples=${samples} />
      </div>
    </div>
  </section>`;
}

export function FromText({ jobs, entered }) {
  const [sources, setSources] = useState(entered.sources ?? []);
  const [options, setOptions] = useState({ dedup: Boolean(entered.dedup), mask_personal: Boolean(entered.mask_personal) });
  const [looked, look, stopLooking] = useCommand();
  const [planned, plan, stopPlanning] = useCommand();
  const [time, setTime] = useState(entered.time ?? "1h");
  const [typed, setTyped] = useState(entered.name ?? null); // until a person types, the name follows the files
  const [taken, setTaken] = useState([]);
  const [price, setPrice] = useState(0.1);
  const [samples, setSamples] = useState({ samples: [], books: [] });
  const [state, setState] = useState({});
  const values = useMemo(() => ({ sources, ...options }), [sources, options]);
  useEffect(() => { api("/api/samples").then(setSamples, () => {}); }, []);
  useEffect(() => {
    if (!sources.length) return;
    api("/api/home").then((home) => setTaken(home.models.map((card) => card.name)), () => {});
    look("/api/look", values).then((found) => found && plan("/api/plan", values));
  }, [values]);
  const failed = typed === entered.name && taken.includes(typed); // that of a run that failed
  const name = failed ? suggested([{ label: typed }], taken) : typed ?? suggested(sources, taken);
  const start = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    try {
      await api("/api/train", { ...values, name, time });
      location.hash = `#/run?${new URLSearchParams({ run: `runs/${name}` })}`;
    } catch (error) {
      setState({ error: error.message });
    }
  };
  const check = (key, label) => html`<label class="check"><input type="checkbox" checked=${options[key]} onChange=${(event) => setOptions({ ...options, [key]: event.target.checked })} />${label}</label>`;
  const busy = jobs.some((job) => job.state === "running");
  return html`<${Heading} title="A model from my text" />
    <section><${Files} sources=${sources} take=${setSources} what="text, Markdown, PDF, Word, EPUB, HTML, JSON, parquet, …, or a folder" /></section>
    ${sources.length > 0 && html`
      <div class="row">${check("dedup", "leave out near duplicates")}${check("mask_personal", "mask e-mail addresses, telephone numbers and keys")}</div>
      <${Waiting} state=${looked} what="Reading the text" cancel=${stopLooking} />
      <${Problem} text=${looked.error} />
      ${looked.value?.later && html`<p class="note">Of so much text near duplicates are left out when the training begins; the figures here count them.</p>`}
      ${looked.value && html`<${Found} result=${looked.value.result} />`}
      <${Waiting} state=${planned} what=${busy ? "Planning; a job is running, so this machine may seem slower than it is" : "Planning; the first time this machine is measured, which takes a minute"} cancel=${stopPlanning} />
      <${Problem} text=${planned.error} />
      ${planned.value && html`<${Dial} plan=${planned.value.result} time=${time} setTime=${setTime} samples=${samples} price=${price} setPrice=${setPrice} />`}
      ${looked.value && html`<form class="sheet" onSubmit=${start}>
        <div class="row low">
          <label class="field grow"><span>Name</span><input id="name" required value=${name} onInput=${(event) => setTyped(event.target.value)} /></label>
          <label class="field"><span>Time (90s, 30m, 8h, 3d)</span><input id="time" required size="8" value=${time} onInput=${(event) => setTime(event.target.value)} /></label>
          <button id="start" disabled=${state.busy}>${busy ? "Put into the queue" : "Start"}</button>
        </div>
        <${Problem} text=${state.error} />
      </form>`}`}`;
}
