// The page: which mode and conversation is open, and one request at a time. Everything comes from this page's server.

import * as api from "./api.js";
import { download, drawList } from "./chat_list.js";
import { Conversations, newConversation } from "./conversations.js";
import { $, button, copyButton, isComposing, make } from "./dom.js";
import { exchange } from "./exchange.js";
import * as models from "./models.js";
import { Reply } from "./reply.js";
import * as settings from "./settings.js";
import { hideTip, listen } from "./tokens.js";
import { Transcript } from "./transcript.js";

const store = new Conversations();
const transcript = new Transcript($("output"), { edit: (i, text) => send(text, i), regenerate: (i) => regenerate(i) });
let mode = "chat";
let chat = store.last() ?? newConversation();
let running = null; // {controller, keep} of the running request
let isLeaving = false; // the page is being left, which ends a running request
let isStale = false; // another tab has changed conversations

// -- requests -------------------------------------------------------------------------------------------------

// Runs a request, however it ends.
async function run(path, body, reply) {
  running.controller = new AbortController();
  let isUnsure = !models.isLoaded() || models.areSeveral(); // another model may have made room for this one
  try {
    const answered = await exchange(path, body, reply, running.controller.signal, (action) => transcript.follow(action));
    isUnsure ||= answered !== null && answered !== body.model; // the server was started again, with another model
  } catch (error) {
    report(error);
    isUnsure = true; // the server may have been started again, with another model
  }
  if (isUnsure) models.load().then(showHint, () => {});
}

function request(extra) {
  return { model: models.name(), stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, ...settings.body(), ...extra };
}

// Sends a message: after the conversation, or in the place of message i and all that follow it.
async function send(text, i = chat.messages.length) {
  if (running || !text.trim()) return;
  const mine = chat;
  const isNew = i === mine.messages.length;
  const messages = [...mine.messages.slice(0, i), { role: "user", content: text }];
  if (await ask(messages, isNew) || mine !== chat || mode !== "chat") return;
  // Nothing came: the message can be edited.
  if (!isNew) transcript.editAgain(i, text);
  else if (mine.messages.length === i) $("prompt").value = text;
}

async function regenerate(i) {
  if (!running) await ask(chat.messages.slice(0, i));
}

// Asks for the reply to messages and makes both the conversation. Returns whether a reply came; if not, the conversation
// stays as it was. A new message is kept before the request starts, so that leaving the page does not lose it, and stays
// without a reply where it cannot go back to the prompt.
async function ask(messages, isNew = false) {
  const mine = chat;
  const before = mine.messages;
  const { name: nameBefore, updated } = mine;
  const probabilities = settings.probabilities();
  const sent = messages.map(({ role, content }) => ({ role, content }));
  if (mine.system.trim()) sent.unshift({ role: "system", content: mine.system.trim() });
  const body = attempt(() => request({ messages: sent, truncation: settings.truncation(), logprobs: probabilities, ...(probabilities ? { top_logprobs: 5 } : {}) }));
  if (!body) return false;
  hideTip();
  problem("");
  notice("");
  if (messages.at(-1).content === $("prompt").value) $("prompt").value = "";
  transcript.draw(messages, probabilities);
  const [turn, place] = transcript.turn({ role: "assistant", model: models.name() });
  turn.classList.add("busy");
  transcript.toEnd();
  const reply = new Reply(place, "markdown");
  const name = models.name();
  let message = null;
  const isKept = store.byId.has(mine.id);
  const write = (all) => {
    mine.messages = all;
    mine.updated = Date.now();
    attempt(() => store.keep(mine));
    store.opened(chat.id);
  };
  if (!before.includes(messages.at(-1))) write(messages);
  const keep = () => {
    if (reply.isEmpty || mine.isRemoved) return;
    message = reply.message(name);
    write([...messages, message]);
  };
  running = { keep };
  busy(true);
  await run("/v1/chat/completions", body, reply);
  running = null;
  keep();
  const stays = isNew && (mode !== "chat" || mine !== chat || $("prompt").value);
  if (!message && !mine.isRemoved && !isLeaving && !stays) {
    Object.assign(mine, { messages: before, updated, name: nameBefore });
    if (isKept) attempt(() => store.keep(mine));
    else store.remove(mine.id);
  }
  busy(false);
  if (mine === chat) {
    turn.classList.remove("busy");
    if (message && turn.isConnected) transcript.finish(turn, message, messages.length, reply.entries);
    else if (mode === "chat") transcript.draw(mine.messages, probabilities);
  }
  if (isStale) refresh();
  else drawChats();
  return Boolean(message);
}

async function complete(text) {
  if (running) return;
  const probabilities = settings.probabilities();
  const body = attempt(() => request({ prompt: text, ...(probabilities ? { logprobs: 5 } : {}) }));
  if (!body) return;
  hideTip();
  problem("");
  const place = make("p", { class: "text plain" }, make("span", { class: "given" }, text));
  const row = make("div", { class: "actions" }, copyButton(() => text + reply.text));
  const turn = make("article", { class: "turn busy" }, place, row);
  $("output").replaceChildren(turn);
  const reply = new Reply(place, "plain");
  running = {};
  busy(true);
  await run("/v1/completions", body, reply);
  running = null;
  busy(false);
  turn.classList.remove("busy");
}

function submit() {
  return mode === "chat" ? send($("prompt").value) : complete($("prompt").value);
}

function stop() {
  running?.controller?.abort();
}

// -- conversations --------------------------------------------------------------------------------------------

function drawChats() {
  if ($("chat-list").querySelector("input")) return; // a name is being typed; its end draws the list
  drawList(store.list(), chat, { open: choose, rename, remove });
}

// Takes over what another tab of the browser has kept.
function refresh() {
  isStale = false;
  const shown = chat;
  store.read();
  const stored = store.byId.get(chat.id);
  if (stored && JSON.stringify(stored.messages) === JSON.stringify(chat.messages)) {
    store.byId.set(chat.id, Object.assign(chat, { ...stored, messages: chat.messages })); // these have their tokens
  } else if (stored) {
    chat = stored;
  }
  if (document.activeElement !== $("system")) $("system").value = chat.system;
  if (chat !== shown && mode === "chat" && !transcript.isEdited) transcript.draw(chat.messages, settings.probabilities());
  drawChats();
}

function choose(conversation) {
  if (conversation !== chat) return open(conversation);
  showPanel("");
  $("prompt").focus({ preventScroll: true });
}

function open(conversation) {
  stop();
  chat = conversation;
  store.opened(chat.id);
  hideTip();
  problem("");
  notice("");
  $("figures").textContent = "";
  $("system").value = chat.system;
  transcript.draw(chat.messages, settings.probabilities());
  drawChats();
  showPanel("");
  $("prompt").focus({ preventScroll: true });
}

function rename(conversation, name) {
  conversation.name = name;
  attempt(() => store.keep(conversation));
  drawChats();
}

function remove(conversation) {
  conversation.isRemoved = true;
  store.remove(conversation.id);
  open(store.list()[0] ?? newConversation(conversation.system));
  const undo = button("Undo", () => {
    delete conversation.isRemoved;
    attempt(() => store.keep(conversation));
    open(conversation);
  });
  notice(`Deleted: ${conversation.name}`, undo);
}

async function importFile() {
  const file = $("import-file").files[0];
  $("import-file").value = "";
  if (!file) return;
  showPanel(""); // it covers the notice on narrow screens
  try {
    const { n, refused } = store.fromJson(await file.text());
    notice(`Imported ${n} conversation${n === 1 ? "" : "s"}.${refused ? ` ${refused.message}` : ""}`);
  } catch (error) {
    notice(`Not imported. ${error.message}`);
  }
  drawChats();
}

// -- page -----------------------------------------------------------------------------------------------------

function problem(text) {
  if ($("problem").textContent !== text) $("problem").textContent = text;
  $("problem").hidden = !text;
  for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

function notice(text, ...more) {
  $("notice").replaceChildren(text, ...more);
  $("notice").hidden = !text;
}

// Shows an error, and goes to the field that it is about.
function report(error) {
  problem(error.message);
  if (error.status === 401) {
    $("key-form").hidden = false;
    $("key").focus();
    return;
  }
  const field = settings.fieldNamed(error.field) ?? (error.field && $(error.field));
  if (!field?.matches("input, select, textarea") || field.closest("[hidden]")) return;
  field.setAttribute("aria-invalid", "true");
  if (field.closest("#settings")) showPanel("settings");
  field.focus();
}

// The value of action(), or null after it has failed and the page says why.
function attempt(action) {
  try {
    return action() ?? true;
  } catch (error) {
    report(error);
    return null;
  }
}

function busy(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
  $("output").setAttribute("aria-busy", is);
  for (const each of document.querySelectorAll(".regenerate")) each.disabled = is;
  const isIdle = [document.body, $("send"), $("stop")].includes(document.activeElement); // nobody types elsewhere
  if (!is && isIdle && !document.querySelector("[aria-invalid]")) $("prompt").focus({ preventScroll: true });
}

// On narrow screens one panel covers the text: "chats", "settings" or none.
function showPanel(name) {
  document.body.dataset.panel = name;
  for (const each of ["chats", "settings"]) $(`show-${each}`).setAttribute("aria-expanded", each === name);
}

function setMode(next) {
  stop();
  mode = next;
  document.body.dataset.mode = mode;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const mine = tab.dataset.mode === mode;
    tab.setAttribute("aria-selected", mine);
    tab.tabIndex = mine ? 0 : -1;
  }
  $("work").setAttribute("aria-labelledby", `tab-${mode}`);
  const isChat = mode === "chat";
  for (const each of document.querySelectorAll(".chat-only")) each.hidden = !isChat;
  $("clear").hidden = isChat;
  $("prompt-label").textContent = isChat ? "Message" : "Prompt";
  $("send").textContent = isChat ? "Send" : "Continue";
  showHint();
  if (isChat) open(chat);
  else clear();
}

function showHint() {
  if (!models.name()) $("output").dataset.hint = "";
  else $("output").dataset.hint = mode === "chat"
    ? models.hasTemplate() ? "Write a message to begin." : "This is a base model. It was not trained to chat, but it will continue the conversation."
    : "The model continues the text that you give it.";
}

function clear() {
  stop();
  $("output").replaceChildren();
  $("figures").textContent = "";
  problem("");
  hideTip();
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", () => { clear(); $("prompt").focus(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
    event.preventDefault();
    submit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (!$("tip").hidden) hideTip();
  else if (document.body.dataset.panel) showPanel("");
  else stop();
});
$("models").addEventListener("change", () => { stop(); models.pick($("models").value); showHint(); });
$("new").addEventListener("click", () => open(newConversation(chat.system)));
$("system").addEventListener("input", () => {
  chat.system = $("system").value;
  if (store.byId.has(chat.id)) attempt(() => store.keep(chat));
});
$("export").addEventListener("click", () => download(store.toJson()));
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", importFile);
for (const name of ["chats", "settings"]) {
  $(`show-${name}`).addEventListener("click", () => showPanel(document.body.dataset.panel === name ? "" : name));
}
// With a key the metrics cannot be opened by a link, since a link sends no key.
$("metrics").addEventListener("click", async (event) => {
  if (!api.key()) return;
  event.preventDefault();
  try {
    location.assign(URL.createObjectURL(await api.blob("/metrics")));
  } catch (error) {
    report(error);
  }
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (attempt(() => api.useKey($("key").value))) start();
});
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => { if (tab.dataset.mode !== mode) setMode(tab.dataset.mode); });
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = document.querySelector("[role=tab][aria-selected=false]");
    other.click();
    other.focus();
  });
}
addEventListener("pagehide", () => {
  running?.keep?.(); // what has arrived of a reply
  isLeaving = true;
});
addEventListener("pageshow", () => { isLeaving = false; });
addEventListener("storage", (event) => {
  if (event.key !== null && !event.key.startsWith("slm.conversation.")) return;
  isStale = true;
  if (!running) refresh();
});
listen($("output"));
settings.start(() => {
  if (running || mode !== "chat" || transcript.isEdited) return;
  const { scrollTop } = $("output");
  transcript.draw(chat.messages, settings.probabilities());
  $("output").scrollTop = scrollTop;
});

const RETRY_MS = 3000; // until the server is asked again that did not answer
let starts = 0;
async function start() {
  const mine = ++starts;
  let trouble = null;
  try {
    await models.load();
  } catch (error) {
    trouble = error;
  }
  if (mine !== starts) return; // another key was tried meanwhile
  if (!trouble || !document.body.dataset.mode) setMode(trouble || models.hasTemplate() ? "chat" : "completion");
  $("key-form").hidden = true;
  if (trouble) report(trouble);
  if (trouble && trouble.status !== 401) setTimeout(() => { if (mine === starts && !running) start(); }, RETRY_MS);
  document.body.dataset.ready = "yes"; // tells tests that the page is ready
}

start();
