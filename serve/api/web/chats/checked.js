// Checked copies of what a file or the browser's storage holds. Each function throws an Error that says what is wrong.

import { chain } from "./tree.js";

export const LONGEST_NAME = 80;
const ROLES = ["user", "assistant", "tool"];

export function nameFrom(messages) {
  const text = messages.find((each) => each.role === "user")?.content.trim().replaceAll(/\s+/g, " ") ?? "";
  const characters = Array.from(text);
  return characters.length > 40 ? `${characters.slice(0, 39).join("")}…` : text || "Conversation";
}

// A conversation without an id: of `turns` and `end`, else of `messages`.
export function conversationOf(value) {
  let system = typeof value?.system === "string" ? value.system : "";
  let turns;
  if (Array.isArray(value?.turns)) {
    turns = value.turns.map((each, i) => ({ ...messageOf(each, i), id: each.id, parent: each.parent ?? null }));
    checkTree(turns);
  } else {
    if (!Array.isArray(value?.messages)) throw new Error('"messages" must be a list');
    const messages = [];
    for (const [i, given] of value.messages.entries()) {
      if (given?.role === "system" && i === 0 && typeof given.content === "string") system = given.content;
      else messages.push(messageOf(given, i));
    }
    turns = chain(messages);
  }
  const end = turns.some((each) => each.id === value.end) ? value.end : turns.at(-1)?.id ?? null;
  const updated = typeof value.updated === "number" ? value.updated : Date.parse(value.updated);
  const name = typeof value.name === "string" ? value.name.trim().slice(0, LONGEST_NAME) : "";
  const made = { name: name || nameFrom(turns), updated: Number.isFinite(updated) ? updated : Date.now(), system, turns, end };
  return { ...made, ...arrivingOf(value.arriving, turns) };
}

// What is not whole is left out: the reply then is what had arrived.
function arrivingOf(given, turns) {
  const { stream, after, turn, begun, model } = given ?? {};
  const isTurn = (id) => turns.some((each) => each.id === id);
  if (typeof stream !== "string" || typeof model !== "string" || !isTurn(after) || !(turn === null || isTurn(turn))) return {};
  try {
    return { arriving: { stream, after, turn, begun: begun ? messageOf(begun, 0) : null, model } };
  } catch {
    return {};
  }
}

// A turn's parent stands before it, so that there is no circle.
function checkTree(turns) {
  const seen = new Set([null]);
  for (const [i, { id, parent }] of turns.entries()) {
    if (typeof id !== "string" || seen.has(id)) throw new Error(`turn ${i + 1}: "id" must be a unique text`);
    if (!seen.has(parent)) throw new Error(`turn ${i + 1}: "parent" must be the id of an earlier turn`);
    seen.add(id);
  }
}

function messageOf(given, i) {
  if (!ROLES.includes(given?.role)) throw new Error(`message ${i + 1}: "role" must be one of ${ROLES.join(", ")}`);
  const calls = given.tool_calls;
  const content = given.content ?? (calls ? "" : undefined);
  if (typeof content !== "string") throw new Error(`message ${i + 1}: "content" must be text`);
  const message = { role: given.role, content };
  if (typeof given.model === "string") message.model = given.model.slice(0, LONGEST_NAME);
  if (typeof given.reasoning_content === "string") message.reasoning_content = given.reasoning_content;
  if (typeof given.tool_call_id === "string") message.tool_call_id = given.tool_call_id;
  if (Number.isInteger(given.n_tokens)) message.n_tokens = given.n_tokens;
  if (given.files !== undefined) message.files = filesOf(given.files, i);
  if (calls !== undefined) message.tool_calls = callsOf(calls, i);
  return message;
}

function filesOf(files, i) {
  const isFile = (each) => typeof each?.name === "string" && typeof each.text === "string";
  if (!Array.isArray(files) || !files.every(isFile)) throw new Error(`message ${i + 1}: "files" must be a list of name and text`);
  return files.map(({ name, text }) => ({ name, text }));
}

function callsOf(calls, i) {
  const isCall = (each) => typeof each?.function?.name === "string" && typeof each.function.arguments === "string";
  if (!Array.isArray(calls) || !calls.every(isCall)) throw new Error(`message ${i + 1}: "tool_calls" must be a list of functions with name and arguments`);
  return calls.map(({ id, function: { name, arguments: given } }) => ({ id: String(id ?? ""), type: "function", function: { name, arguments: given } }));
}
