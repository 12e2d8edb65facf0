// Conversations, kept in this browser's localStorage: one entry each. A conversation is
// {id, name, updated, system, messages}; messages are OpenAI's {role, content}, replies also name their model.

const PREFIX = "slm.conversation.";
const OPEN = "slm.open";
const FORMAT = "slm.conversations";
const LONGEST_NAME = 80;
const ROLES = ["user", "assistant", "tool"];

export class Conversations {
  constructor() {
    this.byId = new Map();
    this.read();
  }

  // Reads what is stored; what cannot be read is left where it is and not shown.
  read() {
    this.byId.clear();
    const entries = attempt(() => Object.entries(localStorage)) ?? [];
    for (const [key, text] of entries) {
      if (!key.startsWith(PREFIX)) continue;
      const found = attempt(() => conversationOf(JSON.parse(text)));
      if (found) this.byId.set(key.slice(PREFIX.length), { ...found, id: key.slice(PREFIX.length) });
    }
  }

  // Newest first.
  list() {
    return [...this.byId.values()].sort((a, b) => b.updated - a.updated);
  }

  // The one that was open last, or null.
  last() {
    return this.byId.get(attempt(() => localStorage.getItem(OPEN))) ?? null;
  }

  opened(id) {
    attempt(() => localStorage.setItem(OPEN, id));
  }

  // Keeps a conversation. Throws when the browser refuses; it then stays in memory.
  keep(conversation) {
    conversation.name ||= nameFrom(conversation.messages);
    this.byId.set(conversation.id, conversation);
    const { id, ...rest } = conversation;
    try {
      localStorage.setItem(PREFIX + id, JSON.stringify(rest));
    } catch {
      throw new Error("This browser cannot keep the conversation: its storage is full or switched off. Export what you need, then delete conversations.");
    }
  }

  remove(id) {
    this.byId.delete(id);
    attempt(() => localStorage.removeItem(PREFIX + id));
  }

  // All conversations as JSON text. Each has "messages" in OpenAI's form, the system message first.
  toJson() {
    const conversations = this.list().map(({ name, updated, system, messages }) => ({
      name,
      updated: new Date(updated).toISOString(),
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    }));
    return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 2);
  }

  // Adds the conversations of a JSON text: those of toJson, a list of {messages}, or one. Returns how many were added,
  // and the error where some of them are not kept. Nothing is added unless all of it can be read.
  fromJson(text) {
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      throw new Error("The file is not JSON.");
    }
    const given = value?.conversations ?? (Array.isArray(value) ? value : [value]);
    if (!Array.isArray(given) || !given.length) throw new Error("The file has no conversations.");
    const added = given.map((each, i) => {
      try {
        return conversationOf(each);
      } catch (error) {
        throw new Error(`Conversation ${i + 1} of the file: ${error.message}.`);
      }
    });
    let refused = null; // the browser's storage is full, say: they are all here until the page is left
    for (const each of added) {
      try {
        this.keep({ ...each, id: crypto.randomUUID?.() ?? randomName() });
      } catch (error) {
        refused = error;
      }
    }
    return { n: added.length, refused };
  }
}

export function newConversation(system = "") {
  return { id: crypto.randomUUID?.() ?? randomName(), name: "", updated: Date.now(), system, messages: [] };
}

// crypto.randomUUID exists only on pages of https or localhost.
function randomName() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function attempt(action) {
  try {
    return action();
  } catch {
    return null;
  }
}

export function nameFrom(messages) {
  const text = messages.find((each) => each.role === "user")?.content.trim().replaceAll(/\s+/g, " ") ?? "";
  const characters = Array.from(text);
  return characters.length > 40 ? `${characters.slice(0, 39).join("")}…` : text || "Conversation";
}

// A checked copy of what a file or the storage holds. Throws an Error that says what is wrong.
function conversationOf(value) {
  if (!Array.isArray(value?.messages)) throw new Error('"messages" must be a list');
  let system = typeof value.system === "string" ? value.system : "";
  const messages = [];
  for (const [i, given] of value.messages.entries()) {
    if (given?.role === "system" && i === 0 && typeof given.content === "string") system = given.content;
    else messages.push(messageOf(given, i));
  }
  const updated = typeof value.updated === "number" ? value.updated : Date.parse(value.updated);
  const name = typeof value.name === "string" ? value.name.trim().slice(0, LONGEST_NAME) : "";
  return { name: name || nameFrom(messages), updated: Number.isFinite(updated) ? updated : Date.now(), system, messages };
}

function messageOf(given, i) {
  if (!ROLES.includes(given?.role)) throw new Error(`message ${i + 1}: "role" must be one of ${ROLES.join(", ")}`);
  const calls = given.tool_calls;
  const content = given.content ?? (calls ? "" : undefined);
  if (typeof content !== "string") throw new Error(`message ${i + 1}: "content" must be text`);
  const message = { role: given.role, content };
  if (typeof given.model === "string") message.model = given.model.slice(0, LONGEST_NAME);
  if (typeof given.reasoning_content === "string") message.reasoning_content = given.reasoning_content;
  if (calls !== undefined) message.tool_calls = callsOf(calls, i);
  return message;
}

function callsOf(calls, i) {
  const isCall = (each) => typeof each?.function?.name === "string" && typeof each.function.arguments === "string";
  if (!Array.isArray(calls) || !calls.every(isCall)) throw new Error(`message ${i + 1}: "tool_calls" must be a list of functions with name and arguments`);
  return calls.map(({ id, function: { name, arguments: given } }) => ({ id: String(id ?? ""), type: "function", function: { name, arguments: given } }));
}

export { LONGEST_NAME };
