// The page: its mode, its keys, and its beginning. Everything comes from this page's server.

import * as api from "./api.js";
import * as asking from "./asking.js";
import * as chats from "./chats/open.js";
import * as connection from "./connection.js";
import { $, isComposing } from "./dom.js";
import * as files from "./files.js";
import { showContext } from "./meter.js";
import * as models from "./models.js";
import { attempt, problem, report, showPanel } from "./page.js";
import * as presets from "./presets.js";
import { session, store, transcript } from "./session.js";
import * as settings from "./settings.js";
import { hideTip, listen } from "./text/tokens.js";
import * as tools from "./tools.js";

function submit() {
  return session.mode === "chat" ? asking.send($("prompt").value) : asking.complete($("prompt").value);
}

function setMode(next) {
  asking.stop();
  session.mode = next;
  document.body.dataset.mode = next;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const mine = tab.dataset.mode === next;
    tab.setAttribute("aria-selected", mine);
    tab.tabIndex = mine ? 0 : -1;
  }
  $("work").setAttribute("aria-labelledby", `tab-${next}`);
  const isChat = next === "chat";
  for (const each of document.querySelectorAll(".chat-only")) each.hidden = !isChat;
  $("clear").hidden = isChat;
  $("prompt-label").textContent = isChat ? "Message" : "Prompt";
  $("send").querySelector(".word").textContent = isChat ? "Send" : "Continue";
  if (isChat) files.put(files.list());
  else $("files").hidden = true;
  showHint();
  if (isChat) chats.open(session.chat);
  else clear();
}

function showHint() {
  if (!models.name()) $("output").dataset.hint = "";
  else $("output").dataset.hint = session.mode === "chat"
    ? models.hasTemplate() ? "Write a message to begin." : "This is a base model. It was not trained to chat, but it will continue the conversation."
    : "The model continues the text that you give it.";
}

function clear() {
  asking.stop();
  $("output").replaceChildren();
  $("figures").textContent = "";
  showContext(null);
  problem("");
  hideTip();
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("stop").addEventListener("click", asking.stop);
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
  else asking.stop();
});
$("models").addEventListener("change", () => { asking.stop(); models.pick($("models").value); showHint(); });
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
  if (attempt(() => api.useKey($("key").value))) ask();
});
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => { if (tab.dataset.mode !== session.mode) setMode(tab.dataset.mode); });
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = document.querySelector("[role=tab][aria-selected=false]");
    other.click();
    other.focus();
  });
}
addEventListener("pagehide", () => {
  const { chat, keep } = session.running ?? {};
  if (chat && !chat.isRemoved) keep(); // what has arrived of the reply
  store.leave();
  session.isLeaving = true;
});
addEventListener("pageshow", ({ persisted }) => {
  session.isLeaving = false;
  if (persisted) store.takeOld().catch(() => {}); // the page is back as it was, without opening the storage again
});

let asked = 0;
let isKnown = false; // the server has answered once, and the mode fits its model
// Asks the server for its models.
async function ask() {
  const mine = ++asked;
  let trouble = null;
  try {
    await models.load();
    connection.found();
  } catch (error) {
    trouble = error;
  }
  if (mine !== asked) return; // another key was tried meanwhile
  isKnown ||= !trouble;
  if (!trouble || !document.body.dataset.mode) setMode(trouble || models.hasTemplate() ? "chat" : "completion");
  $("key-form").hidden = true;
  if (trouble && connection.isLost(trouble)) connection.lost();
  else if (trouble) report(trouble);
  document.body.dataset.ready = "yes"; // tells tests that the page is ready
  if (!trouble && session.mode === "chat") asking.resume();
}

async function start() {
  Object.assign(transcript.actions, {
    edit: asking.edit, save: asking.save, continue: asking.goOn, regenerate: asking.regenerate, answer: asking.answer, choose: chats.chooseVersion,
  });
  asking.onChange(() => { showHint(); chats.update(); });
  listen($("output"));
  settings.start(() => {
    if (session.running || session.mode !== "chat" || transcript.isEdited) return;
    const { scrollTop } = $("output");
    transcript.draw(session.chat, settings.probabilities());
    $("output").scrollTop = scrollTop;
  });
  presets.start((system) => {
    $("system").value = system;
    chats.setSystem(system);
  });
  tools.start();
  files.start();
  chats.start();
  connection.start(() => (isKnown ? showHint() : ask()));
  await store.open();
  session.chat = store.last() ?? session.chat;
  await ask();
}

start();
