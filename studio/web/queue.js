// The queue: what runs, what waits and in which order, what has ended and how.

import { Action, ago, api, Command, duration, Heading, html, Problem, trains, useEffect, useRef, useState, Why, WORK } from "./lib.js";
import { Running } from "./home.js";

// A job's log, followed while it is open.
export function Log({ job }) {
  const [open, setOpen] = useState(false);
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const place = useRef();
  useEffect(() => {
    if (!open) return undefined;
    let next = -1, stopped = false, timer = null;
    const read = async () => {
      try {
        const found = await api(`/api/jobs/${job.id}/log?from=${next}`);
        if (stopped) return;
        const first = next < 0;
        next = found.next;
        if (found.text) setText((before) => ((first ? "" : before) + found.text).slice(-200000));
        setError(null);
      } catch (problem) {
        setError(problem.message);
      }
      if (!stopped) timer = setTimeout(read, 2000);
    };
    read();
    return () => { stopped = true; clearTimeout(timer); };
  }, [open, job.id]);
  useEffect(() => { if (place.current) place.current.scrollTop = place.current.scrollHeight; }, [text]);
  // A line that was drawn over itself: its last state.
  const shown = text.split("\n").map((line) => line.split("\r").at(-1).replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "")).join("\n");
  return html`<details open=${open} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>Log and command</summary>
    <${Command} text=${job.command} />
    <${Problem} text=${error} />
    ${open && html`<pre class="log" tabindex="0" ref=${place} aria-label="Log">${shown || "Nothing yet."}</pre>`}
  </details>`;
}

const NAMES = { done: "done", stopped: "stopped, saved", failed: "failed", gone: "ended without a word" };

function Ended({ job }) {
  return html`<article class="sheet card">
    <div class="row spread"><b>${job.title}</b><span><span class="status ${job.state}">${NAMES[job.state]}</span>
      <span class="quiet"> ${job.ended ? ago(job.ended) : ""}${job.ended && job.began ? `, took ${duration(job.ended - job.began)}` : ""}</span></span></div>
    <${Why} job=${job} />
    <div class="row">
      ${trains(job) && html`<a class="button plain small" href=${`#/run?${new URLSearchParams({ run: job.run })}`}>Open</a>`}
      ${job.state !== "done" && html`<${Action} run=${() => api(`/api/jobs/${job.id}/again`, {})}>${trains(job) ? "Resume" : "Try again"}<//>`}
      <${Action} run=${() => api(`/api/jobs/${job.id}/forget`, {})}>Remove from the list<//>
    </div>
    <${Log} job=${job} />
  </article>`;
}

export function Queue({ jobs, known }) {
  const running = jobs.filter((job) => job.state === "running");
  const waiting = jobs.filter((job) => job.state === "waiting");
  const ended = jobs.filter((job) => !["running", "waiting"].includes(job.state)).reverse();
  const move = (id, before) => api(`/api/jobs/${id}/move`, { before });
  return html`<${Heading} title="Queue" />
    <p class="quiet">Training takes the whole machine, so one job runs at a time. Jobs go on when this page, or studio, is closed.</p>
    ${known && !jobs.length && html`<p class="note">Nothing runs or waits.</p>`}
    ${running.map((job) => html`<section key=${job.id}><${Running} job=${job} />
      <div class="row"><${Action} run=${() => api(`/api/jobs/${job.id}/stop`, {})}>Stop (saves)<//></div><${Log} job=${job} /></section>`)}
    ${waiting.length > 0 && html`<section><h2>Waiting</h2><${Problem} text=${waiting[0].error} /><ol class="chosen">${waiting.map((job, n) => html`<li key=${job.id} class="sheet">
      <span>${job.title} <span class="quiet">${WORK[job.kind]}</span></span>
      <span class="row">
        <${Action} disabled=${n === 0} run=${() => move(job.id, waiting[n - 1].id)}>Earlier<//>
        <${Action} disabled=${n === waiting.length - 1} run=${() => move(job.id, waiting[n + 2]?.id ?? null)}>Later<//>
        <${Action} run=${() => api(`/api/jobs/${job.id}/stop`, {})}>Remove<//>
      </span></li>`)}</ol></section>`}
    ${ended.length > 0 && html`<section><h2>Ended</h2><div class="list">${ended.map((job) => html`<${Ended} key=${job.id} job=${job} />`)}</div></section>`}`;
}
