// The playground. One request at a time; everything shown comes from the server this page came from.

const $ = (id) => document.getElementById(id);
const NUMBERS = ["max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed"];

let mode = "chat";
let messages = []; // of the chat: {role, content}
let running = null; // AbortController of the running request
let hasTemplate = false;
let cards = []; // of /v1/models
let current = ""; // the model's name

// -- server ---------------------------------------------------------------------------------------------------

function headers() {
  const key = sessionStorage.getItem("key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not JSON of ours
  }
  return Object.assign(new Error(message), { status: response.status });
}

// Yields the objects of a stream of server-sent events. The end is "[DONE]"; an end without it is a failure.
async function* events(response) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of chunks(response.body)) {
    const parts = (rest + decoder.decode(bytes, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
  throw new Error("The server ended the reply early.");
}

async function* chunks(body) {
  const reader = body.getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
  } finally {
    reader.releaseLock();
  }
}

async function loadFacts() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (!response.ok) throw await failure(response);
  cards = (await response.json()).data;
  const select = $("models");
  $("models-label").hidden = cards.length < 2;
  $("model").hidden = cards.length > 1;
  select.replaceChildren(...cards.map((card) => new Option(card.id, card.id)));
  pick(cards.some((card) => card.id === current) ? current : cards[0].id);
}

// Shows the facts of a model; the next request goes to it.
function pick(name) {
  current = $("models").value = name;
  const { id, status, meta } = cards.find((card) => card.id === name);
  hasTemplate = Boolean(meta?.chat_template);
  $("model").textContent = id;
  document.title = `${id} · slm`;
  const facts = meta ? [
    meta.architecture,
    `${(meta.n_params / 1e6).toFixed(1)} M parameters`,
    `${(meta.size_bytes / 2 ** 20).toFixed(1)} MiB`,
    `context ${meta.context}`,
    `vocabulary ${meta.n_vocab}`,
    meta.chat_template ? "chat template" : "base model",
  ] : ["its file cannot be read"];
  if (status !== "ready") facts.push(status === "unloaded" ? "loaded when asked" : status);
  $("facts").textContent = facts.join(" · ");
  if (meta) $("max_tokens").max = meta.context;
  setHint();
}

function askForKey() {
  $("key-form").hidden = false;
  $("key").focus();
}

// -- request --------------------------------------------------------------------------------------------------

function settings() {
  const body = { model: current, stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) {
    const field = $(name);
    if (!field.checkValidity()) {
      $("settings").open = true;
      field.focus();
      throw new Error(`${name}: ${field.validationMessage}`);
    }
    if (field.value !== "") body[name] = Number(field.value);
  }
  if ($("stop_text").value) body.stop = [$("stop_text").value.replaceAll("\\n", "\n")];
  const form = $("form").value;
  if (form === "json_object") body.response_format = { type: form };
  if (form === "json_schema") {
    try {
      body.response_format = { type: form, json_schema: { name: "page", schema: JSON.parse($("schema").value) } };
    } catch (error) {
      throw new Error(`The schema is not valid JSON: ${error.message}`);
    }
  }
  return body;
}

function request(text) {
  const body = settings();
  const probabilities = $("probabilities").checked;
  if (mode === "completion") {
    return ["/v1/completions", { ...body, prompt: text, ...(probabilities ? { logprobs: 5 } : {}) }];
  }
  const system = $("system").value.trim();
  const all = [...(system ? [{ role: "system", content: system }] : []), ...messages, { role: "user", content: text }];
  return ["/v1/chat/completions", { ...body, messages: all, logprobs: probabilities, ...(probabilities ? { top_logprobs: 5 } : {}) }];
}

async function send() {
  const text = $("prompt").value;
  if (running || (mode === "chat" && !text.trim())) return;
  problem("");
  let path, body;
  try {
    [path, body] = request(text);
  } catch (error) {
    problem(error.message);
    return;
  }
  const reply = begin(text);
  running = new AbortController();
  busy(true);
  const loading = cards.find((card) => card.id === current)?.status !== "ready";
  if (loading) $("figures").textContent = "The model is being loaded.";
  const began = performance.now();
  let first = 0;
  let last = 0;
  let nTokens = 0;
  let usage = null;
  let finish = null;
  try {
    const response = await fetch(path, {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
    });
    if (!response.ok) throw await failure(response);
    for await (const event of events(response)) {
      if (event.usage) usage = event.usage;
      const choice = event.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const added = reply.take(choice);
      if (added) {
        last = performance.now();
        first ||= last;
        nTokens += added;
        figures({ began, first, last, nTokens });
      }
    }
    figures({ began, first, last, nTokens: usage?.completion_tokens ?? nTokens, usage, finish });
  } catch (error) {
    if (error.name === "AbortError") figures({ began, first, last, nTokens, finish: "stopped by you" });
    else tell(error);
  } finally {
    running = null;
    busy(false);
    reply.end();
    if (loading || cards.length > 1) loadFacts().catch(() => {}); // another may have made room for it
  }
}

// -- text -----------------------------------------------------------------------------------------------------

// Puts the prompt on the page and returns the element for the reply.
function begin(text) {
  hideTip();
  const output = $("output");
  const isChat = mode === "chat";
  if (!isChat) output.replaceChildren();
  const asked = paragraph(isChat ? "user" : "", isChat ? "You" : "");
  if (isChat) {
    asked.append(text);
    $("prompt").value = "";
  } else {
    const given = document.createElement("span");
    given.className = "given";
    given.textContent = text;
    asked.append(given);
  }
  const place = isChat ? paragraph("assistant", "Model") : asked;
  place.classList.add("busy");
  const reply = new Reply(place);
  return {
    take: (choice) => {
      const near = output.scrollHeight - output.scrollTop - output.clientHeight < 60;
      const added = reply.take(choice);
      if (near) output.scrollTop = output.scrollHeight;
      return added;
    },
    end: () => {
      place.classList.remove("busy");
      if (!isChat) return;
      if (reply.text) {
        messages.push({ role: "user", content: text }, { role: "assistant", content: reply.text });
      } else {
        // Nothing came: the message goes back into the field, where it can be edited.
        asked.remove();
        place.remove();
        if (!$("prompt").value) $("prompt").value = text;
      }
    },
  };
}

function paragraph(kind, who) {
  const p = document.createElement("p");
  if (kind) p.className = kind;
  if (who) {
    const label = document.createElement("span");
    label.className = "who";
    label.textContent = who;
    p.append(label);
  }
  $("output").append(p);
  return p;
}

class Reply {
  constructor(place) {
    this.place = place;
    this.text = "";
    this.decoder = new TextDecoder(); // one over all tokens: a character may be split among them
    this.points = 0; // characters shown, as the server counts them
  }

  // Shows what a chunk brings; returns how many tokens that is, as far as one can tell.
  take(choice) {
    const text = choice.delta ? choice.delta.content ?? "" : choice.text;
    this.text += text;
    const entries = choice.logprobs ? this.entries(choice.logprobs, text) : [];
    if (entries.length) for (const entry of entries) this.place.append(token(entry));
    else if (text) this.place.append(text);
    return entries.length || (text ? 1 : 0);
  }

  entries(logprobs, text) {
    if (logprobs.content) {
      return logprobs.content.map((each) => ({
        text: this.decoder.decode(new Uint8Array(each.bytes), { stream: true }),
        logprob: each.logprob,
        name: each.token,
        id: each.bytes.join(), // tokens that are no whole characters share a spelling
        top: each.top_logprobs.map((one) => [one.token, one.logprob, one.bytes.join()]),
      }));
    }
    // Offsets count characters from the reply's beginning; the last token's text goes on to the chunk's end.
    const characters = Array.from(text);
    const start = this.points;
    this.points += characters.length;
    return logprobs.tokens.map((name, i) => {
      const from = i ? logprobs.text_offset[i] - start : 0;
      const to = i + 1 < logprobs.tokens.length ? logprobs.text_offset[i + 1] - start : characters.length;
      const top = Object.entries(logprobs.top_logprobs[i]).map(([other, value]) => [other, value, other]);
      return { text: characters.slice(from, to).join(""), logprob: logprobs.token_logprobs[i], name, id: name, top };
    });
  }
}

function token(entry) {
  const span = document.createElement("span");
  const p = Math.exp(entry.logprob);
  span.className = `token p${p > 0.8 ? 0 : p > 0.5 ? 1 : p > 0.25 ? 2 : p > 0.08 ? 3 : 4}`;
  span.textContent = entry.text;
  span.entry = entry;
  return span;
}

// -- what a token might have been -----------------------------------------------------------------------------

function showTip(span) {
  const { name, id, logprob, top } = span.entry;
  const rows = top.some((other) => other[2] === id) ? top : [...top, [name, logprob, id]];
  const table = document.createElement("table");
  for (const [other, value, otherId] of [...rows].sort((a, b) => b[1] - a[1])) {
    const row = table.insertRow();
    if (otherId === id) row.className = "picked";
    row.insertCell().textContent = visible(other);
    row.insertCell().textContent = `${(100 * Math.exp(value)).toFixed(1)} %`;
  }
  const tip = $("tip");
  tip.replaceChildren(table);
  tip.hidden = false;
  const box = span.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : Math.max(8, box.top - tip.offsetHeight - 6)}px`;
}

function hideTip() {
  $("tip").hidden = true;
  document.querySelector(".token.chosen")?.classList.remove("chosen");
}

function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "·") || "∅";
}

function choose(span) {
  hideTip();
  if (!span) return;
  span.classList.add("chosen");
  span.scrollIntoView({ block: "nearest" });
  showTip(span);
}

function step(by) {
  const tokens = [...document.querySelectorAll(".token")].filter((span) => span.textContent);
  if (!tokens.length) return;
  const at = tokens.indexOf(document.querySelector(".token.chosen"));
  const next = at < 0 ? (by > 0 ? 0 : tokens.length - 1) : Math.min(Math.max(at + by, 0), tokens.length - 1);
  choose(tokens[next]);
}

// -- page -----------------------------------------------------------------------------------------------------

function figures({ began, first, last, nTokens, usage, finish }) {
  const parts = [`${nTokens} token${nTokens === 1 ? "" : "s"}`];
  if (first) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  if (nTokens > 1 && last > first) parts.push(`${((nTokens - 1) / ((last - first) / 1000)).toFixed(1)} tokens/s`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`);
  }
  if (finish === "length") parts.push("cut at the most tokens or the context");
  else if (finish && finish !== "stop") parts.push(finish);
  $("figures").textContent = parts.join(" · ");
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function tell(error) {
  problem(error.message);
  if (error.status === 401) askForKey();
}

function busy(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
  $("output").setAttribute("aria-busy", is);
  if (!is) $("prompt").focus({ preventScroll: true });
}

function setMode(next) {
  if (running) running.abort();
  mode = next;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const mine = tab.dataset.mode === mode;
    tab.setAttribute("aria-selected", mine);
    tab.tabIndex = mine ? 0 : -1;
  }
  $("work").setAttribute("aria-labelledby", `tab-${mode}`);
  const isChat = mode === "chat";
  for (const each of document.querySelectorAll(".chat-only")) each.hidden = !isChat;
  $("prompt-label").textContent = isChat ? "Message" : "Text to go on from";
  $("send").textContent = isChat ? "Send" : "Go on";
  setHint();
  clear();
}

function setHint() {
  $("output").dataset.hint = mode === "chat"
    ? hasTemplate ? "Say something." : "A base model: it was not trained to chat, but it will try."
    : "The text and what the model makes of it will be here.";
}

function clear() {
  messages = [];
  $("output").replaceChildren();
  $("figures").textContent = "";
  problem("");
  hideTip();
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => { running?.abort(); clear(); $("prompt").focus(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (!$("tip").hidden) hideTip();
  else running?.abort();
});
$("models").addEventListener("change", () => { running?.abort(); pick($("models").value); });
$("form").addEventListener("change", () => { $("schema-label").hidden = $("form").value !== "json_schema"; });
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value);
  start();
});
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => setMode(tab.dataset.mode));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = document.querySelector("[role=tab][aria-selected=false]");
    other.click();
    other.focus();
  });
}
const output = $("output");
output.addEventListener("mouseover", (event) => {
  if (event.target.entry) showTip(event.target);
});
output.addEventListener("mouseout", hideTip);
output.addEventListener("click", (event) => choose(event.target.entry ? event.target : null));
output.addEventListener("scroll", () => { if (!document.querySelector(".token.chosen")) hideTip(); });
output.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  event.preventDefault();
  step(by);
});
output.addEventListener("blur", hideTip);

let starts = 0;
async function start() {
  const mine = ++starts;
  let trouble = null;
  try {
    await loadFacts();
  } catch (error) {
    trouble = error;
  }
  if (mine !== starts) return; // another key was tried meanwhile
  setMode(hasTemplate ? "chat" : "completion");
  $("key-form").hidden = true;
  if (trouble) tell(trouble);
  document.body.dataset.ready = "yes"; // tells tests that the page is ready
}

if (matchMedia("(max-width: 760px)").matches) $("settings").open = false;
start();
