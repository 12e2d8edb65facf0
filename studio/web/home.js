// The first page: every model as a card, what runs now, folders and the trash.

import { Action, ago, api, bytes, count, duration, fixed, Heading, html, Problem, Progress, trains, useEffect, useState, WORK } from "./lib.js";
import { Sparkline } from "./chart.js";

const KINDS = { run: "run", tuned: "tuned", adapter: "LoRA", model: "downloaded", gguf: "GGUF" };
const link = (screen, values) => `#/${screen}?${new URLSearchParams(values)}`;

export function Running({ job }) {
  const { share, left_s: left, loss, is_teacher: teacher } = job.progress ?? {};
  return html`<div class="sheet">
    <div class="row spread">
      <b><a href=${job.run && trains(job) ? link("run", { run: job.run }) : "#/queue"}>${job.title}</a></b>
      <span class="quiet">${WORK[job.kind]}${teacher ? ", part 1 of 2: its teacher" : ""}${left !== undefined && left !== null ? `, ${duration(left)} left${teacher ? " of this part" : ""}` : ""}${loss ? `, loss ${fixed(loss, 2)}` : ""}</span>
    </div>
    ${share !== undefined && html`<${Progress} share=${share} label="Progress of ${job.title}" />`}
    ${job.line && html`<p class="quiet">${job.line}</p>`}
  </div>`;
}

// The last score of a tuned model's questions, in the command's own words.
const score = (card) => card.asked.at(-1)?.line;

// Trains a run further: by its own job, or, where a command began it, by its name.
const goOn = (card, job) => (job && job.state !== "done" ? api(`/api/jobs/${job.id}/again`, {}) : api("/api/continue", { run: card.path }));

// Where two models answer side by side: a tuned one next to what it was tuned from, any other next to one that is chosen.
function compared(card, cards) {
  const of = card.base?.replace(/\/checkpoints\/.*$/, ""); // a run is tuned from one of its checkpoints
  const base = cards.find((each) => each.path === of && each.ggufs.length);
  return link("chat", { a: card.ggufs[0].path, ...(base ? { b: base.ggufs[0].path } : {}), compare: "yes" });
}

function Card({ card, cards, job, changed }) {
  const facts = [
    card.n_params && `${count(card.n_params)} parameters`,
    card.bits_per_byte && `${fixed(card.bits_per_byte)} bits per byte`,
    bytes(card.bytes),
    ago(card.date),
  ].filter(Boolean);
  const made = card.base ? `from ${card.base}` : card.files.filter(Boolean).length ? `from ${card.files.filter(Boolean).slice(0, 2).join(", ")}` : "";
  const isRun = ["run", "tuned", "adapter"].includes(card.kind);
  const state = job?.state === "running" ? "running" : job?.state === "waiting" ? "waiting" : null;
  // A run without a folder yet has its job only, and a finished one needs more time, which its own screen asks for.
  const finished = card.ended === "finished" && !(job && ["stopped", "failed", "gone"].includes(job.state));
  return html`<article class="sheet card">
    <div class="head">
      <div>
        <h3>${isRun ? html`<a href=${link("run", { run: card.path })}>${card.name}</a>` : card.name}</h3>
        <p class="quiet"><span class="kind">${KINDS[card.kind]}</span> ${state && html`<span class="status ${state}">${state}</span>`} ${card.architecture ?? ""}</p>
      </div>
      ${card.curve.length > 1 && html`<${Sparkline} values=${card.curve} />`}
    </div>
    <p class="quiet">${facts.join(" · ")}</p>
    ${made && html`<p class="quiet">${made}</p>`}
    ${score(card) && html`<p class="quiet">${score(card)}</p>`}
    ${card.fault && html`<${Problem} text=${card.fault} />`}
    ${card.not_continued && html`<p class="quiet">Cannot be continued: ${card.not_continued}</p>`}
    <div class="row">
      ${isRun && !state && !card.not_continued && !card.fault && (finished
        ? html`<a class="button plain small" href=${link("run", { run: card.path })}>Continue</a>`
        : html`<${Action} run=${() => goOn(card, job)}>Continue<//>`)}
      ${card.ggufs.length > 0 && !card.fault && html`<a class="button plain small" href=${link("chat", { a: card.ggufs[0].path })}>Chat</a>
        <a class="button plain small" href=${compared(card, cards)}>Compare</a>`}
      ${(card.checkpoints > 0 || card.kind === "gguf") && !card.fault && html`<a class="button plain small" href=${link("answers", { base: card.path })}>Tune</a>`}
      ${card.checkpoints > 0 && html`<a class="button plain small" href=${link("export", { model: card.path })}>Export</a>`}
      ${card.report && html`<a class="button plain small" target="_blank" rel="noopener" href=${`/api/report?run=${encodeURIComponent(card.path)}`}>Report</a>`}
      ${card.own && html`<${Action} confirm="Really?" run=${async () => { await api("/api/models/delete", { path: card.path }); changed(); }}>Delete<//>`}
    </div>
  </article>`;
}

export function Home({ jobs }) {
  const [home, setHome] = useState(null);
  const [error, setError] = useState(null);
  const [path, setPath] = useState("");
  const load = () => api("/api/home").then((found) => { setHome(found); setError(null); }, (problem) => setError(problem.message));
  // Jobs that begin or end change the models.
  const states = jobs.map((job) => job.id + job.state).join();
  useEffect(() => { load(); }, [states]);
  const running = jobs.filter((job) => job.state === "running");
  const jobOf = (card) => jobs.findLast((job) => job.run === card.path && trains(job));
  return html`<${Heading} title="Models" />
    ${running.map((job) => html`<section><${Running} job=${job} /></section>`)}
    <div class="big">
      <a class="sheet" href="#/text"><b>A model from my text</b><br />Drop files or a folder: see what is in them, choose the time, start.</a>
      <a class="sheet" href="#/answers"><b>A model that answers like this</b><br />Give questions with answers: tune a model, see its answers before and after.</a>
    </div>
    <${Problem} text=${error} />
    ${home && html`
      <section aria-label="Models">
        ${home.models.length ? html`<div class="cards">${home.models.map((card) => html`<${Card} key=${card.path} card=${card} cards=${home.models} job=${jobOf(card)} changed=${load} />`)}</div>`
          : html`<p class="note">No model yet. Make one from your text, or add a folder with GGUF files below.</p>`}
      </section>
      <section>
        <h2>Folders</h2>
        <p class="quiet">Runs and texts are in ${home.root} (${bytes(home.disk.free)} free). ${home.folders.length ? "Studio reads that folder and these:" : "Studio reads that folder only, until you add others."}</p>
        <ul class="chosen">${home.folders.map((each) => html`<li><code>${each.path}</code>${each.added && html`<${Action} run=${async () => { await api("/api/folders/remove", { path: each.path }); load(); }}>Remove<//>`}</li>`)}</ul>
        ${home.may_add && html`<div class="row">
          <input class="grow" aria-label="Folder to add" placeholder="~/.lmstudio/models" value=${path} onInput=${(event) => setPath(event.target.value)} />
          <${Action} disabled=${!path.trim()} run=${async () => { await api("/api/folders/add", { path }); setPath(""); load(); }}>Add folder<//>
        </div>
        <div class="row">${home.known.map((each) => html`<${Action} run=${async () => { await api("/api/folders/add", { path: each.path }); load(); }}>Add ${each.of}: ${each.path}<//>`)}</div>`}
      </section>
      ${home.trash.length > 0 && html`<section>
        <h2>Trash</h2>
        <ul class="chosen">${home.trash.map((each) => html`<li><span>${each.from} <span class="quiet">${bytes(each.bytes)}, ${ago(each.at)}</span></span>
          <${Action} run=${async () => { await api("/api/trash/back", { id: each.id }); load(); }}>Put back<//></li>`)}</ul>
        <${Action} confirm="Really? This cannot be undone." run=${async () => { await api("/api/trash/empty", {}); load(); }}>Empty the trash<//>
      </section>`}`}`;
}
