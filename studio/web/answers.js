// A model that answers like this: conversations or a table of questions and answers, a base, and the start.

import { api, bytes, Heading, html, Problem, Tile, useEffect, useMemo, useState } from "./lib.js";
import { Files, upload } from "./files.js";
import { suggested, useCommand, Waiting } from "./text.js";

// A table of questions and answers that is written on the page.
function Table({ done }) {
  const [rows, setRows] = useState([{ question: "", answer: "" }, { question: "", answer: "" }]);
  const [error, setError] = useState(null);
  const set = (n, key, value) => {
    const next = rows.map((row, m) => (m === n ? { ...row, [key]: value } : row));
    if (n === rows.length - 1) next.push({ question: "", answer: "" });
    setRows(next);
  };
  // Two columns that are pasted from a spreadsheet become rows.
  const paste = (event, n) => {
    const lines = event.clipboardData.getData("text").split(/\r?\n/).filter(Boolean).map((line) => line.split("\t"));
    if (!lines.some((line) => line.length > 1)) return;
    event.preventDefault();
    const pasted = lines.map(([question, answer = ""]) => ({ question, answer }));
    setRows([...rows.slice(0, n), ...pasted, ...rows.slice(n + 1), { question: "", answer: "" }]);
  };
  const whole = rows.filter((row) => row.question.trim() && row.answer.trim());
  const use = async () => {
    try {
      const text = whole.map((row) => JSON.stringify(row)).join("\n");
      done({ upload: await upload([{ file: new Blob([text]), name: "questions.jsonl" }]), label: `${whole.length} questions written here` });
    } catch (problem) {
      setError(problem.message);
    }
  };
  return html`<div class="scroll"><table>
    <thead><tr><th>Question</th><th>Answer</th></tr></thead>
    <tbody>${rows.map((row, n) => html`<tr>${["question", "answer"].map((key) => html`<td>
      <input aria-label="${key} ${n + 1}" value=${row[key]} onInput=${(event) => set(n, key, event.target.value)} onPaste=${(event) => paste(event, n)} /></td>`)}</tr>`)}</tbody>
  </table></div>
  <p><button type="button" class="plain" disabled=${!whole.length} onClick=${use}>Use these ${whole.length || ""} questions</button></p>
  <${Problem} text=${error} />`;
}

const ASIDE = 0.1; // of the conversations, where a person asks for it

// Conversations as data-stats found them, with what is learned.
function Found({ result, aside }) {
  const sources = Object.values(result.sources);
  const total = (key) => sources.reduce((all, each) => all + each[key], 0);
  const whole = sources.every((each) => each.complete);
  const conversations = whole ? total("conversations") : result.text.reduce((all, each) => all + each.taken, 0);
  const apart = Math.round((aside ? ASIDE : result.tune_holds_out) * conversations);
  const examples = sources.flatMap((each) => each.examples);
  return html`<section aria-label="What is in it">
    <h2>What is in it</h2>
    ${sources.map((each) => each.found && html`<p>${each.found}</p>`)}
    <div class="tiles">
      <${Tile} name="conversations">${whole ? "" : "about "}${conversations.toLocaleString("en")}<//>
      <${Tile} name="put aside for the score">${apart ? `about ${apart.toLocaleString("en")}` : "none"} <span class="quiet">${apart ? "not learned" : "all are learned"}</span><//>
      <${Tile} name="messages">${total("messages").toLocaleString("en")}<//>
      <${Tile} name="learned tokens">${total("scored_tokens").toLocaleString("en")} <span class="quiet">of ${total("tokens").toLocaleString("en")}</span><//>
      <${Tile} name="refused by the template">${total("refused").toLocaleString("en")}<//>
    </div>
    ${!whole && html`<p class="note" id="sample">There are many. Looked at: the first ${total("conversations").toLocaleString("en")} (${bytes(total("bytes"))}); messages, tokens and refusals are counted in these. The tuning takes from all.</p>`}
    ${sources.map((each) => each.why_refused && html`<p class="note">Left out: ${each.why_refused}</p>`)}
    ${result.text.map((each) => Object.entries(each.left_out).map(([why, n]) => html`<p class="quiet">${why}: ${n}</p>`))}
    <h3>As the model reads them</h3>
    <p class="quiet">What is <span class="learned">coloured</span> is learned; the rest is what it answers to.</p>
    ${examples.map((pieces) => html`<div class="text cut" tabindex="0">${pieces.map((each) => html`<span class=${each.scored ? "learned" : ""}>${each.text}</span>`)}</div>`)}
  </section>`;
}

export function Answers({ query, entered, jobs }) {
  const [sources, setSources] = useState(entered.sources ?? []);
  const [models, setModels] = useState([]);
  const [base, setBase] = useState(query.base ?? entered.base ?? "");
  const [other, setOther] = useState("");
  const [aside, setAside] = useState(Boolean(entered.aside));
  const [lora, setLora] = useState(Boolean(entered.lora));
  const [time, setTime] = useState(entered.time ?? "");
  const [name, setName] = useState(entered.name ?? "");
  const [looked, look, stopLooking] = useCommand();
  const [state, setState] = useState({});
  useEffect(() => {
    api("/api/home").then((home) => {
      setModels(home.models);
      // A name on the Hub, or a path, is no card.
      if (entered.base && !home.models.some((card) => card.path === entered.base)) {
        setOther(entered.base);
        setBase("other");
      } else setBase((now) => now || home.models.find((card) => card.checkpoints)?.path || "other");
    }, (error) => setState({ error: error.message }));
  }, []);
  useEffect(() => { if (sources.length) look("/api/look", { sources, chat: true }); }, [sources]);
  const card = models.find((each) => each.path === base);
  const names = useMemo(() => models.map((each) => each.name), [models]);
  const failed = name === entered.name && names.includes(name); // that of a run that failed
  const shown = failed ? suggested([{ label: name }], names) : name || suggested([{ label: `${(card?.name ?? other.split("/").at(-1)) || "model"}-chat` }], names);
  const start = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    try {
      await api("/api/tune", { sources, base: base === "other" ? other : base, name: shown, lora, aside, time });
      location.hash = `#/run?${new URLSearchParams({ run: `runs/${shown}` })}`;
    } catch (error) {
      setState({ error: error.message });
    }
  };
  const busy = jobs.some((job) => job.state === "running");
  return html`<${Heading} title="A model that answers like this" />
    <section><${Files} sources=${sources} take=${setSources} what="conversations, or a table of questions and answers (JSON, JSON lines, CSV, TSV, parquet)," />
      <details><summary>Or write them here</summary><${Table} done=${(source) => setSources([...sources, source])} /></details>
    </section>
    <${Waiting} state=${looked} what="Reading the conversations" cancel=${stopLooking} />
    <${Problem} text=${looked.error} />
    ${looked.value && sources.length > 0 && html`<${Found} result=${looked.value.result} aside=${aside} />
    <form class="sheet" onSubmit=${start}>
      <label class="field"><span>Model to tune</span>
        <select id="base" value=${base} onChange=${(event) => setBase(event.target.value)}>
          ${models.filter((each) => each.checkpoints > 0 || each.kind === "gguf").map((each) => html`<option value=${each.path}>${each.path}${each.kind === "gguf" ? " (GGUF)" : ""}</option>`)}
          <option value="other">a model of the Hugging Face Hub, or another path</option>
        </select></label>
      ${base === "other" && html`<label class="field"><span>Name on the Hub, or a path</span><input required value=${other} placeholder="HuggingFaceTB/SmolLM2-135M" onInput=${(event) => setOther(event.target.value)} /></label>`}
      <fieldset><legend>What is tuned</legend>
        <label class="check"><input type="radio" name="lora" checked=${!lora} onChange=${() => setLora(false)} />all weights</label>
        <label class="check"><input type="radio" name="lora" checked=${lora} onChange=${() => setLora(true)} />a LoRA adapter: less memory, and the model's own weights stay</label>
      </fieldset>
      <div class="row low">
        <label class="field grow"><span>Name</span><input id="name" value=${shown} onInput=${(event) => setName(event.target.value)} /></label>
        <label class="field"><span>Time (empty: as long as it needs)</span><input id="time" value=${time} placeholder="10m" onInput=${(event) => setTime(event.target.value)} /></label>
        <button id="start" disabled=${state.busy}>${busy ? "Put into the queue" : "Start"}</button>
      </div>
      <label class="check"><input type="checkbox" checked=${aside} onChange=${(event) => setAside(event.target.checked)} />put a tenth of the conversations aside, and score the model on those</label>
      <p class="quiet">The model is asked some of the questions before and after. With fewer than 200 conversations none is put aside unless you say so: facts that are not learned cannot be known.</p>
    </form>`}
    <${Problem} text=${state.error} />`;
}
