// Conversations as a file, out of the browser and into it.

import { make } from "../dom.js";
import { conversationOf } from "./checked.js";
import { asSent } from "./sent.js";
import { path, randomId } from "./tree.js";

const FORMAT = "slm.conversations";

// All conversations as JSON text. Each has "messages" in OpenAI's form, the system message first: those that are shown.
// One with other versions of turns, or with files, also has all its "turns", as they are kept here.
export function toJson(conversations) {
  const made = conversations.map((conversation) => {
    const { name, updated, system, turns, end } = conversation;
    const shown = path(conversation);
    const messages = shown.map((turn) => {
      const { id, parent, files, content, n_tokens, ...rest } = turn;
      return { ...rest, content: asSent(turn).content };
    });
    const more = shown.length < turns.length || turns.some((each) => each.files?.length) ? { system, turns, end } : {};
    return { name, updated: new Date(updated).toISOString(), messages: [...(system ? [{ role: "system", content: system }] : []), ...messages], ...more };
  });
  return JSON.stringify({ format: FORMAT, version: 2, conversations: made }, null, 2);
}

// The conversations of a JSON text: those of toJson, a list of {messages}, or one. Throws unless all of it can be read.
export function fromJson(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  const given = value?.conversations ?? (Array.isArray(value) ? value : [value]);
  if (!Array.isArray(given) || !given.length) throw new Error("The file has no conversations.");
  return given.map((each, i) => {
    try {
      return { ...conversationOf(each), id: randomId() };
    } catch (error) {
      throw new Error(`Conversation ${i + 1} of the file: ${error.message}.`);
    }
  });
}

export function download(text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const day = new Date().toISOString().slice(0, 10);
  make("a", { href: url, download: `slm-conversations-${day}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
