// Which conversation is open, and what is done with the list of them.

import { keep, stop } from "../asking.js";
import { $, button } from "../dom.js";
import * as settings from "../settings.js";
import { showContext } from "../meter.js";
import { notice, problem, showPanel } from "../page.js";
import { session, store, transcript } from "../session.js";
import { hideTip } from "../text/tokens.js";
import { drawList, found } from "./list.js";
import { download, fromJson, toJson } from "./transfer.js";
import { newConversation, path, show } from "./tree.js";

export function drawChats() {
  if ($("chat-list").querySelector("input")) return; // a name is being typed; its end draws the list
  drawList(found(store.list(), $("search").value), session.chat, { open: choose, rename, remove });
}

function drawTurns() {
  transcript.draw(session.chat, settings.probabilities());
  showContext(path(session.chat).findLast((each) => each.n_tokens)?.n_tokens);
}

// Draws again where the list or the open conversation has changed; what other tabs have kept is taken over.
export async function update() {
  if (session.isStale && !session.running) await refresh();
  else drawChats();
}

async function refresh() {
  session.isStale = false;
  const shown = session.chat;
  await store.read();
  const stored = store.byId.get(shown.id);
  if (session.running || session.chat !== shown) return;
  if (stored && JSON.stringify([stored.turns, stored.end]) === JSON.stringify([shown.turns, shown.end])) {
    store.byId.set(shown.id, Object.assign(shown, { ...stored, turns: shown.turns })); // these have their tokens
  } else if (stored) {
    session.chat = stored;
  }
  if (document.activeElement !== $("system")) $("system").value = session.chat.system;
  if (session.chat !== shown && session.mode === "chat" && !transcript.isEdited) drawTurns();
  drawChats();
}

function choose(conversation) {
  if (conversation !== session.chat) return open(conversation);
  showPanel("");
  $("prompt").focus({ preventScroll: true });
}

export function open(conversation) {
  stop();
  session.chat = conversation;
  store.opened(conversation.id);
  hideTip();
  problem("");
  notice("");
  $("figures").textContent = "";
  $("system").value = conversation.system;
  drawTurns();
  drawChats();
  showPanel("");
  $("prompt").focus({ preventScroll: true });
}

// Shows another version of a turn, and goes to the arrow by its label again.
export function chooseVersion(turn, label) {
  if (session.running) return;
  const { scrollTop } = $("output");
  show(session.chat, turn);
  keep(session.chat);
  drawTurns();
  $("output").scrollTop = scrollTop;
  const arrows = [...$("output").querySelectorAll(`[data-turn="${CSS.escape(turn.id)}"] .arrow`)];
  (arrows.find((each) => !each.disabled && each.title === label) ?? arrows.find((each) => !each.disabled))?.focus();
}

export function setSystem(text) {
  session.chat.system = text;
  if (store.byId.has(session.chat.id)) keep(session.chat);
}

function rename(conversation, name) {
  conversation.name = name;
  keep(conversation);
  drawChats();
}

function remove(conversation) {
  conversation.isRemoved = true;
  store.remove(conversation.id);
  open(store.list()[0] ?? newConversation(conversation.system));
  const undo = button("Undo", () => {
    delete conversation.isRemoved;
    keep(conversation);
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
    const all = fromJson(await file.text());
    const kept = await Promise.allSettled(all.map((each) => store.keep(each)));
    const refused = kept.find((each) => each.status === "rejected"); // they are here until the page is left
    notice(`Imported ${all.length} conversation${all.length === 1 ? "" : "s"}.${refused ? ` ${refused.reason.message}` : ""}`);
  } catch (error) {
    notice(`Not imported. ${error.message}`);
  }
  drawChats();
}

export function start() {
  $("new").addEventListener("click", () => open(newConversation(session.chat.system)));
  $("search").addEventListener("input", drawChats);
  $("system").addEventListener("input", () => setSystem($("system").value));
  $("export").addEventListener("click", () => download(toJson(store.list())));
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", importFile);
  store.onChange(() => {
    session.isStale = true;
    update();
  });
}
