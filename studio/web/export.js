// Export: what the file is to be, what its proof measured, and how to use it elsewhere.

import { Action, api, bytes, Command, Heading, html, Problem, useEffect, useState, Why } from "./lib.js";
import { Chart } from "./chart.js";
import { Running } from "./home.js";
import { Log } from "./queue.js";

const GOALS = [
  ["balanced", "balanced", "Q4_K_M: a third of the size of 16 bits, and nearly the same text"],
  ["smallest", "smallest", "as small as it may be with at most 4 % more loss: each tensor's type is chosen"],
  ["best", "best", "Q8_0: as good as the model itself"],
  ["size", "at most … MB", ""],
  ["speed", "at least … tokens a second", "measured on this machine"],
];

const percent = (value) => (value === null || value === undefined ? "" : `${value >= 0 ? "+" : ""}${(100 * value).toFixed(2)} %`);

// What the proof says of a file, in words.
function inWords(file) {
  if (file.same_top === null || file.same_top === undefined) return "Not compared with a checkpoint by this export";
  // A change within two standard errors may be a chance of the text.
  const least = Math.max(0.005, 2 * (file.perplexity_change_stderr ?? 0));
  const change = Math.abs(file.perplexity_change) <= least ? "its loss equals the model's" : `its perplexity differs by ${percent(file.perplexity_change)}`;
  return `In ${(100 * file.same_top).toFixed(1)} % of all places it would write the same token as the model; ${change}`;
}

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function File({ file, card, root }) {
  const path = quoted(file.path.startsWith("/") ? file.path : `${root}/${file.path}`);
  const name = card.name.toLowerCase().replace(/[^a-z0-9_.-]/g, "-");
  return html`<article class="sheet card">
    <div class="row spread"><h3>${file.name}</h3><span>${bytes(file.bytes)}</span></div>
    <p class="quiet">${inWords(file)}</p>
    <div class="row">
      <a class="button plain small" href=${`/api/download?path=${encodeURIComponent(file.path)}`} download=${file.name}>Download</a>
      <a class="button plain small" href=${`#/chat?${new URLSearchParams({ a: file.path })}`}>Chat</a>
    </div>
    <details><summary>Use it in Ollama, LM Studio, llama.cpp</summary>
      <p class="quiet">Ollama${card.modelfile ? "" : ": it needs a chat template, which this model does not have"}</p>
      ${card.modelfile && html`<${Command} text=${`ollama create ${name} -f ${quoted(`${root}/${card.modelfile}`)} && ollama run ${name}`} />`}
      <p class="quiet">LM Studio</p><${Command} text=${`lms import ${path}`} />
      <p class="quiet">llama.cpp</p><${Command} text=${`llama-cli -m ${path}`} />
      <p class="quiet">slm's server, with OpenAI's API</p><${Command} text=${`slm serve model=${path}`} />
    </details>
  </article>`;
}

const REFERENCE = "f32";

// The types of this machine: quality against size and against speed, and the same as a table.
function Types({ rows }) {
  const plot = (title, xName, x, xText) => html`<${Chart} title=${title} xName=${xName} xText=${xText} yText=${(value) => `${+(100 * value).toPrecision(2)}`} lines=${[]} height=${260}
    points=${rows.filter((each) => each.type !== REFERENCE).map((each) => ({ x: x(each), y: each.change, name: each.type }))} />`;
  const megabytes = (n) => String(+(n / 1e6).toPrecision(3));
  const sorted = [...rows].sort((a, b) => a.bytes - b.bytes);
  return html`<div class="two">
      ${plot("More perplexity in %, by size", "MB", (each) => each.bytes / 1e6, (value) => String(+value.toPrecision(3)))}
      ${plot("More perplexity in %, by speed on this machine", "tokens a second", (each) => each.tok_s, (value) => Math.round(value).toLocaleString("en"))}
    </div>
    <div class="scroll figures" tabindex="0" role="region" aria-label="Types"><table>
      <thead><tr><th>Type</th><th class="number">MB</th><th class="number">More perplexity</th><th class="number">Tokens a second</th><th class="number">Same first choice</th></tr></thead>
      <tbody>${sorted.map((each) => html`<tr><td>${each.type}${each.type === REFERENCE ? " (the reference)" : ""}</td><td class="number">${megabytes(each.bytes)}</td><td class="number">${percent(each.change)}</td>
        <td class="number">${Math.round(each.tok_s).toLocaleString("en")}</td><td class="number">${(100 * each.same_top).toFixed(1)} %</td></tr>`)}</tbody>
    </table></div>`;
}

export function Export({ query, entered, jobs }) {
  const [home, setHome] = useState(null);
  const [model, setModel] = useState(query.model ?? entered.model ?? "");
  const [goal, setGoal] = useState(entered.goal ?? "balanced");
  const [number, setNumber] = useState(entered.number || "");
  const [error, setError] = useState(null);
  const own = jobs.filter((job) => ["export", "types"].includes(job.kind) && job.run === model);
  const states = own.map((job) => job.id + job.state).join();
  useEffect(() => {
    api("/api/home").then((found) => {
      setHome(found);
      setModel((now) => now || found.models.find((card) => card.checkpoints)?.path || "");
    }, (problem) => setError(problem.message));
  }, [states]);
  if (!home) return html`<${Heading} title="Export" /><${Problem} text=${error} />`;
  const able = home.models.filter((card) => card.checkpoints > 0);
  const card = able.find((each) => each.path === model);
  const last = own.at(-1);
  const types = card?.types ?? [];
  return html`<${Heading} title="Export" />
    ${!able.length && html`<p class="note">There is no trained model yet.</p>`}
    ${able.length > 0 && html`<div class="sheet">
      <label class="field"><span>Model</span><select id="model" value=${model} onChange=${(event) => setModel(event.target.value)}>${able.map((each) => html`<option value=${each.path}>${each.path}</option>`)}</select></label>
      <fieldset><legend>The file is to be</legend>${GOALS.map(([value, name, about]) => html`<label class="check">
        <input type="radio" name="goal" value=${value} checked=${goal === value} onChange=${() => setGoal(value)} /><span>${name} <span class="quiet">${about}</span></span></label>`)}</fieldset>
      ${["size", "speed"].includes(goal) && html`<label class="field"><span>${goal === "size" ? "MB" : "tokens a second"}</span><input type="number" min="0" step="any" value=${number} onInput=${(event) => setNumber(event.target.value)} /></label>`}
      <${Action} kind="" disabled=${!card} run=${() => api("/api/export", { model, goal, number: Number(number) })}>Export<//>
    </div>`}
    ${own.filter((job) => job.state === "running").map((job) => html`<section><${Running} job=${job} /></section>`)}
    ${own.filter((job) => job.state === "waiting").map((job) => html`<p class="note">${job.title} waits in the <a href="#/queue">queue</a>.</p>`)}
    ${last && html`<section><${Why} job=${last} /></section>`}
    ${last && html`<${Log} key=${last.id} job=${last} />`}
    ${card && card.ggufs.length > 0 && html`<section><h2>Files</h2>
      <div class="cards">${card.ggufs.map((file) => html`<${File} key=${file.path} file=${file} card=${card} root=${home.root} />`)}</div></section>`}
    ${card && html`<section><h2>Which type?</h2>
      ${types.length > 0 ? html`<${Types} rows=${types} />` : html`<p class="quiet">Quality, size and speed of the types on this machine, measured: a minute or more, by the model's size. No file is kept.</p>`}
      <${Action} run=${() => api("/api/types", { model })}>${types.length ? "Measure again" : "Compare the types"}<//>
    </section>`}`;
}
