// One run, live: curves, samples as it learns, answers before and after, what happened, and what can be done.

import { Action, api, count, duration, fixed, follow, Heading, html, Problem, Progress, Tile, trains, useEffect, useMemo, useState, Why } from "./lib.js";
import { Chart } from "./chart.js";
import { Log } from "./queue.js";

const ANSWERED = /^> (.*)\nexpected: (.*)\ngiven: ([^]*)$/;

// The samples of each step: [{step, texts}].
function bySteps(samples) {
  const steps = [...new Set(samples.map((each) => each.step))];
  return steps.map((step) => ({ step, texts: samples.filter((each) => each.step === step).map((each) => each.text) }));
}

function Samples({ samples, validations }) {
  const plain = useMemo(() => bySteps(samples.filter((each) => !ANSWERED.test(each.text))), [samples]);
  const [at, setAt] = useState(null);
  if (!plain.length) return null;
  const here = Math.min(at ?? plain.length - 1, plain.length - 1);
  const { step, texts } = plain[here];
  const validation = validations.find((each) => each.step === step);
  return html`<section><h2>What it writes</h2>
    <label class="field"><span>after step ${step.toLocaleString("en")}${validation?.bits_per_byte ? `, at ${fixed(validation.bits_per_byte)} bits per byte` : ""}</span>
      ${plain.length > 1 && html`<input type="range" min="0" max=${plain.length - 1} value=${here} aria-valuetext="step ${step}" onInput=${(event) => setAt(Number(event.target.value))} />`}</label>
    ${texts.map((text) => html`<div class="text">${text}</div>`)}
  </section>`;
}

function AnswersSoFar({ samples, events }) {
  const asked = samples.map((each) => ({ step: each.step, found: ANSWERED.exec(each.text) })).filter((each) => each.found);
  const lines = events.filter((event) => event.kind === "asked");
  if (!asked.length && !lines.length) return null;
  const questions = [...new Set(asked.map((each) => each.found[1]))].map((question) => {
    const all = asked.filter((each) => each.found[1] === question);
    return { question, expected: all[0].found[2], first: all[0], last: all.at(-1) };
  });
  return html`<section><h2>Its answers</h2>
    ${lines.map((event) => html`<p class="asked">${event.text}</p>`)}
    <div class="scroll wide" tabindex="0" role="region" aria-label="Answers before and now"><table>
      <thead><tr><th>Question</th><th>Expected</th><th>Before (step ${questions[0]?.first.step})</th><th>Now (step ${questions[0]?.last.step})</th></tr></thead>
      <tbody>${questions.map((each) => html`<tr><td data-name="Question">${each.question}</td><td data-name="Expected">${each.expected}</td><td data-name="Before">${each.first.found[3]}</td>
        <td data-name="Now" class=${each.last.found[3].trim() === each.expected.trim() ? "learned" : ""}>${each.last === each.first ? "" : each.last.found[3]}</td></tr>`)}</tbody>
    </table></div>
  </section>`;
}

function Buttons({ job, run, state }) {
  const [time, setTime] = useState("");
  const query = new URLSearchParams({ model: run });
  const timed = state || (job && /(budget|max_minutes)=/.test(job.command));
  const live = job ? ["running", "waiting"].includes(job.state) : state?.status === "running"; // or a command trains it
  const ended = job ? ["stopped", "failed", "gone"].includes(job.state) : state && state.status !== "finished";
  const resume = () => (job ? api(`/api/jobs/${job.id}/again`, {}) : api("/api/continue", { run }));
  const more = () => (state ? api("/api/continue", { run, time }) : api(`/api/jobs/${job.id}/again`, { time }));
  return html`<div class="row">
    ${job?.state === "running" && (!state || state.status === "running") && html`<${Action} kind="" run=${() => api(`/api/jobs/${job.id}/stop`, {})}>Stop (saves)<//>`}
    ${job?.state === "waiting" && html`<${Action} run=${() => api(`/api/jobs/${job.id}/stop`, {})}>Remove from the queue<//>`}
    ${ended && !live && html`<${Action} kind="" run=${resume}>Resume<//>`}
    ${timed && !live && html`<span class="row"><label>Time in all: <input size="6" placeholder="20m" value=${time} onInput=${(event) => setTime(event.target.value)} /></label>
      <${Action} disabled=${!time.trim()} run=${more}>Give more time<//></span>`}
    ${state && job?.state !== "running" && html`
      <a class="button plain small" href="#/export?${query}">Export</a>
      <a class="button plain small" href="#/answers?${new URLSearchParams({ base: run })}">Tune</a>`}
    ${state && html`<a class="button plain small" target="_blank" rel="noopener" href=${`/api/report?run=${encodeURIComponent(run)}`}>Report</a>`}
  </div>`;
}

const LATE_MS = 4000; // a job that was just put into the queue is told a moment later

export function Run({ query, jobs }) {
  const { run } = query;
  const [state, setState] = useState(null);
  const [error, setError] = useState(null);
  const [attempt, setAttempt] = useState(0);
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), LATE_MS);
    return () => clearTimeout(timer);
  }, []);
  const job = jobs.findLast((each) => each.run === run && trains(each));
  const live = job?.state === "running" || job?.state === "waiting";
  useEffect(() => {
    let timer = null;
    const close = follow(`/api/run/events?run=${encodeURIComponent(run)}`, (found) => {
      if (found.error) {
        setError(found.error);
        if (live) timer = setTimeout(() => setAttempt((n) => n + 1), 2000); // its directory comes with its first steps
      } else {
        setError(null);
        setState(found);
      }
    }, () => { if (live && !state) timer = setTimeout(() => setAttempt((n) => n + 1), 2000); });
    return () => { close(); clearTimeout(timer); };
  }, [run, job?.state, attempt]);
  const status = live && job.state === "waiting" ? "waiting" : job && ["failed", "gone"].includes(job.state) ? job.state : state?.status ?? job?.state ?? "";
  const teacher = state && state.name !== run.split("/").at(-1) && state.name;
  const training = job?.state === "running" && (!state || state.status === "running" || teacher); // and not just about to go
  const learned = state?.events.some((event) => event.kind === "asked" && event.text.includes("none is held out"));
  const saves = state?.saves.map((each) => ({ ...each, text: "saved: a checkpoint to resume from" })) ?? [];
  const told = [...(state?.events.filter((event) => event.kind !== "asked") ?? []), ...saves]
    .sort((a, b) => (a.time ?? 0) - (b.time ?? 0) || a.step - b.step).slice(-40).reverse();
  return html`<${Heading} title=${run}>${run.replace(/^runs\//, "")} <span class="status ${status}">${status === "gone" ? "ended without a word" : status}</span><//>
    ${teacher && html`<p class="note" id="teacher">Part 1 of 2: these are the figures of <a href=${`#/run?${new URLSearchParams({ run: `runs/${teacher}` })}`}>${teacher}</a>, a model that then teaches this one. A text that is read often is learned better so.</p>`}
    <${Why} job=${job} />
    ${training && job.line && html`<p class="quiet">${job.line}</p>`}
    ${training && html`<${Progress} share=${state?.status === "running" ? state.progress : job.progress?.share} label="Progress" />`}
    <${Buttons} job=${job} run=${run} state=${teacher ? null : state} />
    ${late && !live && !state && !job?.error && html`<${Problem} text=${error} />`}
    ${state && html`
      <div class="tiles">
        <${Tile} name="step">${count(state.step)}${state.planned_steps ? ` of ${count(state.planned_steps)}` : ""}<//>
        <${Tile} name="tokens read">${count(state.tokens)}<//>
        <${Tile} name="time">${duration(state.elapsed_s)}${state.seconds_left !== null ? html` <span class="quiet">${duration(state.seconds_left)} left</span>` : ""}<//>
        <${Tile} name="speed">${count(state.tokens_per_s)} <span class="quiet">tokens a second</span><//>
        <${Tile} name="bits per byte">${fixed(state.validations.at(-1)?.bits_per_byte)} <span class="quiet">lower is better</span><//>
        ${state.predicted && html`<${Tile} name="planned bits per byte">${fixed(state.predicted.bits_per_byte, 2)} <span class="quiet">${fixed(state.predicted.low, 2)} to ${fixed(state.predicted.high, 2)}</span><//>`}
        ${state.forecast && state.status === "running" && html`<${Tile} name="forecast of the end">${state.forecast.split(" ")[0]} <span class="quiet">${state.forecast.split(" ").slice(1).join(" ")}</span><//>`}
        <${Tile} name="parameters">${count(state.model.n_params)}<//>
      </div>
      <div class="two">
        <${Chart} title="Loss, ${state.loss_unit}" xName="step" xText=${(value) => count(value)}
          lines=${[
            { name: "training", kind: "thin", x: state.curve.step, y: state.curve.loss },
            { name: "validation", kind: "second", x: state.validations.map((each) => each.step), y: state.validations.map((each) => each.loss) },
          ]} />
        <${Chart} title=${learned ? "Bits per byte of what it learns from (none is held out)" : "Bits per byte of held-out text"} xName="step" xText=${(value) => count(value)}
          lines=${[{ name: "validation", kind: "first", x: state.validations.map((each) => each.step), y: state.validations.map((each) => each.bits_per_byte) }]} />
      </div>
      <${AnswersSoFar} samples=${state.samples} events=${state.events} />
      <${Samples} samples=${state.samples} validations=${state.validations} />
      <section><h2>What happened</h2>
        <ul class="events">${told.map((event) => html`<li class=${event.serious ? "problem" : ""}><span class="quiet">step ${count(event.step)}${event.time ? `, ${new Date(event.time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}` : ""}</span> ${event.text}</li>`)}</ul>
      </section>`}
    ${job && html`<section><${Log} job=${job} /></section>`}`;
}
