// The frame: which screen is shown, and the queue that every screen may look at.

import { follow, html, Problem, render, useEffect, useState } from "./lib.js";
import { Answers } from "./answers.js";
import { Chat } from "./chat.js";
import { Export } from "./export.js";
import { Home } from "./home.js";
import { Queue } from "./queue.js";
import { Run } from "./run.js";
import { FromText } from "./text.js";

const SCREENS = {
  "": { screen: Home, name: "Models" },
  text: { screen: FromText, name: "From my text" },
  answers: { screen: Answers, name: "Answers like this" },
  export: { screen: Export, name: "Export" },
  chat: { screen: Chat, name: "Chat" },
  queue: { screen: Queue, name: "Queue" },
  run: { screen: Run },
};

function place() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: name in SCREENS ? name : "", query: Object.fromEntries(new URLSearchParams(query)) };
}

function App() {
  const [here, setHere] = useState(place());
  const [jobs, setJobs] = useState(null); // until studio has told them
  const [lost, setLost] = useState(false);
  useEffect(() => {
    const moved = () => setHere(place());
    addEventListener("hashchange", moved);
    const close = follow("/api/jobs/events", (found) => {
      if (found.jobs) setJobs(found.jobs);
      setLost(false);
    }, () => setLost(true));
    document.body.dataset.ready = "yes";
    return () => { removeEventListener("hashchange", moved); close(); };
  }, []);
  const { screen } = SCREENS[here.name];
  const { change } = here.query; // the job with the form that is to be changed
  const entered = change ? jobs?.find((job) => job.id === change)?.form : null;
  const waiting = (jobs ?? []).filter((job) => job.state === "running" || job.state === "waiting").length;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>To the content</a>
    <header><div>
      <a class="brand" href="#/">slm studio</a>
      <nav aria-label="Screens">${Object.entries(SCREENS).filter(([, each]) => each.name).map(([name, each]) => html`
        <a href="#/${name}" aria-current=${here.name === name ? "page" : null}>${each.name}${name === "queue" && waiting ? ` (${waiting})` : ""}</a>`)}
      </nav>
    </div></header>
    <main tabindex="-1">
      ${lost && html`<${Problem} text="Studio does not answer. Jobs go on; the page comes back by itself when studio is started again." />`}
      ${(!change || jobs) && html`<${screen} key=${location.hash} query=${here.query} entered=${entered ?? {}} jobs=${jobs ?? []} known=${jobs !== null} />`}
    </main>`;
}

render(html`<${App} />`, document.body);
