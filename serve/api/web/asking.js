// Requests of the page, one at a time, and what becomes of their replies.

import * as api from "./api.js";
import { asSent } from "./chats/sent.js";
import { add, drop, path, randomId, turnOf } from "./chats/tree.js";
import * as connection from "./connection.js";
import { $, copyButton, make } from "./dom.js";
import { exchange } from "./exchange.js";
import * as files from "./files.js";
import * as models from "./models.js";
import { attempt, busy, notice, problem, report } from "./page.js";
import { session, store, transcript } from "./session.js";
import * as settings from "./settings.js";
import { Reply } from "./text/reply.js";
import { hideTip } from "./text/tokens.js";
import * as tools from "./tools.js";

const KEEP_MS = 1000; // between two times that a reply is kept that still arrives

let changed = () => {}; // the list of conversations is to be drawn again

export function onChange(draw) {
  changed = draw;
}

export function stop() {
  const { controller, chat } = session.running ?? {};
  if (chat?.arriving) api.end(chat.arriving.stream);
  controller?.abort();
}

// Keeps a conversation; the page says where the browser refuses.
export function keep(conversation) {
  store.keep(conversation).catch(report);
}

// Takes the events of a request, however it ends. Returns what the exchange tells about it.
async function run(events, model, reply, isLate = false) {
  let isUnsure = !models.isLoaded() || models.areSeveral(); // another model may have made room for this one
  let answered = null;
  try {
    answered = await exchange(events, reply, (action) => transcript.follow(action), isLate);
    isUnsure ||= answered.model !== null && answered.model !== model; // the server was started again, with another model
  } catch (error) {
    if (connection.isLost(error)) {
      connection.lost();
    } else {
      report(error);
      isUnsure = true; // the server may have been started again, with another model
    }
  }
  if (isUnsure) models.load().then(changed, () => {});
  return answered;
}

function request(extra) {
  const options = { include_usage: true, continuous_usage_stats: true };
  return { model: models.name(), stream: true, stream_options: options, return_progress: true, ...settings.body(), ...extra };
}

// The body for the reply to messages. Throws where a setting cannot be used.
function chatBody(system, messages, isContinued) {
  const sent = messages.map(asSent);
  if (system.trim()) sent.unshift({ role: "system", content: system.trim() });
  const probabilities = settings.probabilities() && !isContinued;
  return request({
    messages: sent,
    truncation: settings.truncation(),
    logprobs: probabilities,
    ...(probabilities ? { top_logprobs: 5 } : {}),
    ...settings.thinking(),
    ...tools.body(),
  });
}

// Adds messages after the turn with the id `parent` and asks for the reply; with `begun`, for the rest of that reply,
// which is the turn after `parent`. Returns whether a reply came. If not, the conversation is as it was, unless `stays()`
// says of the messages that there is no way back for them. They are kept before the request starts, so that leaving the
// page does not lose them.
async function ask(parent, messages, { stays = () => false, begun = null } = {}) {
  const mine = session.chat;
  const { end, name, updated } = mine;
  const isKept = store.byId.has(mine.id);
  const body = attempt(() => chatBody(mine.system, [...path(mine, parent), ...messages, ...(begun ? [begun] : [])], Boolean(begun)));
  if (!body) return false;
  hideTip();
  problem("");
  notice("");
  const added = [];
  for (const message of messages) added.push(add(mine, added.at(-1)?.id ?? parent, message));
  const stream = randomId();
  const after = added.at(-1)?.id ?? parent;
  mine.arriving = { stream, after, turn: begun?.id ?? null, begun: begun && { ...begun }, model: body.model };
  write(mine);
  if (added.length) changed();
  const controller = new AbortController();
  const answer = await receive(mine, api.stream("/v1/chat/completions", body, controller.signal, stream), controller);
  if (!answer && !mine.isRemoved && !session.isLeaving) {
    const isBack = !stays(mine);
    if (isBack) {
      for (const each of added.reverse()) drop(mine, each, end);
      Object.assign(mine, { end, updated, name });
    }
    if (isKept || !isBack) keep(mine);
    else store.remove(mine.id);
  }
  shown(mine);
  return Boolean(answer);
}

function write(conversation) {
  conversation.updated = Date.now();
  keep(conversation);
  store.opened(session.chat.id);
}

// Shows the reply that arrives for a conversation, and keeps it. Returns its turn, or null where nothing came.
async function receive(mine, events, controller, isLate = false) {
  const { after, begun, model } = mine.arriving;
  transcript.draw(mine, settings.probabilities(), after);
  const [turn, place] = transcript.turn({ role: "assistant", model });
  turn.classList.add("busy");
  const reply = new Reply(place, "markdown", begun);
  transcript.toEnd();
  let answer = turnOf(mine, mine.arriving.turn);
  const had = answer?.content.length ?? 0;
  const keepReply = () => {
    if (reply.isEmpty || mine.isRemoved) return;
    if (isLate && reply.text.length < had) return; // what had arrived before comes again
    const said = reply.message(model);
    if (answer) Object.assign(answer, said);
    else answer = add(mine, after, said);
    if (mine.arriving) mine.arriving.turn = answer.id;
    write(mine);
  };
  session.running = { controller, keep: keepReply, chat: mine };
  const timer = setInterval(keepReply, KEEP_MS);
  busy(true);
  const answered = await run(events, model, reply, isLate);
  clearInterval(timer);
  session.running = null;
  if (!session.isLeaving) delete mine.arriving;
  if (answered?.usage && !reply.isEmpty) reply.nTokens = answered.usage.total_tokens;
  keepReply();
  if (answer && !reply.isEmpty && mine === session.chat && session.mode === "chat" && turn.isConnected && answer.content === reply.text) {
    turn.classList.remove("busy");
    transcript.finish(mine, turn, answer, reply.entries);
  }
  return answer;
}

// After a reply: the open conversation as it is, unless the reply's own turn shows it.
function shown(mine) {
  if (mine === session.chat && session.mode === "chat" && document.querySelector(".turn.busy")) transcript.draw(mine, settings.probabilities());
  busy(false);
  changed();
}

// Shows the rest of a reply that was arriving when the page was left, or says why there is none.
export async function resume() {
  const mine = session.chat;
  if (session.running || !mine.arriving) return;
  const controller = new AbortController();
  session.running = { controller, keep: () => {}, chat: mine };
  busy(true);
  let events = null;
  let isAway = false;
  try {
    events = await api.resumed(mine.arriving.stream, controller.signal);
  } catch (error) {
    isAway = connection.isLost(error);
    if (isAway) connection.lost();
    else if (error.name !== "AbortError") notice(error.message);
  }
  session.running = null;
  if (events && mine === session.chat && session.mode === "chat") await receive(mine, events, controller, true);
  else if (!isAway && !session.isLeaving) delete mine.arriving;
  if (!mine.isRemoved && !session.isLeaving) keep(mine);
  shown(mine);
}

// Sends a message with the files that are attached, after the conversation.
export async function send(text) {
  const attached = files.list();
  if (session.running || !(text.trim() || attached.length)) return;
  const mine = session.chat;
  const isElsewhere = () => session.mode !== "chat" || mine !== session.chat;
  const message = { role: "user", content: text, ...(attached.length ? { files: attached } : {}) };
  const { end } = mine;
  const isSent = () => mine.end !== end;
  const asking = ask(end, [message], { stays: () => isElsewhere() || Boolean($("prompt").value) || files.list().length > 0 });
  if (isSent()) {
    if ($("prompt").value === text) $("prompt").value = "";
    files.clear();
  }
  if (await asking || isElsewhere() || isSent()) return;
  $("prompt").value = text; // nothing came
  files.put(attached);
}

// Sends a message in another version.
export async function edit(turn, text) {
  if (session.running) return;
  const mine = session.chat;
  const { role, files: attached } = turn;
  const message = { role, content: text, ...(attached ? { files: attached } : {}) };
  if (await ask(turn.parent, [message]) || mine !== session.chat || session.mode !== "chat") return;
  transcript.editAgain(turn.id, text); // nothing came
}

// Asks for another reply in place of one, or for the reply to a turn that has none.
export async function regenerate(turn) {
  if (!session.running) await ask(turn.role === "assistant" ? turn.parent : turn.id, []);
}

// Lets the model go on with a reply.
export async function goOn(turn) {
  if (!session.running) await ask(turn.parent, [], { begun: turn });
}

// Keeps a reply in another version, and perhaps lets the model go on with it.
export async function save(turn, text, isContinued = false) {
  if (session.running) return;
  const mine = session.chat;
  const { id, parent, tool_calls, n_tokens, ...rest } = turn;
  const made = add(mine, parent, { ...rest, content: text });
  mine.updated = Date.now();
  keep(mine);
  transcript.draw(mine, settings.probabilities());
  changed();
  if (isContinued) await goOn(made);
}

// Gives the results of a reply's calls to the model.
export async function answer(turn, results) {
  if (session.running) return;
  const messages = turn.tool_calls.map(({ id }, i) => ({ role: "tool", content: results[i], tool_call_id: id }));
  await ask(turn.id, messages, { stays: () => true });
}

export async function complete(text) {
  if (session.running) return;
  const probabilities = settings.probabilities();
  const body = attempt(() => request({ prompt: text, ...(probabilities ? { logprobs: 5 } : {}) }));
  if (!body) return;
  hideTip();
  problem("");
  const place = make("p", { class: "text plain" }, make("span", { class: "given" }, text));
  const row = make("div", { class: "actions" }, copyButton(() => text + reply.text, "copy"));
  const turn = make("article", { class: "turn busy" }, place, row);
  $("output").replaceChildren(turn);
  const reply = new Reply(place, "plain");
  const controller = new AbortController();
  session.running = { controller };
  busy(true);
  await run(api.stream("/v1/completions", body, controller.signal), body.model, reply);
  session.running = null;
  busy(false);
  turn.classList.remove("busy");
}
