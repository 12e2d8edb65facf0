// The conversations, all in memory and kept in this browser's IndexedDB: a record each.

import { conversationOf, nameFrom } from "./checked.js";

const DATABASE = "slm";
const RECORDS = "conversations";
const OPEN = "slm.open";
const OLD = "slm.conversation."; // entries of localStorage: of versions before, and of pages that were left
// An entry is a conversation, or {removed: when} of one that was deleted.

export class Conversations {
  constructor() {
    this.byId = new Map();
    this.database = null;
    this.underway = new Map(); // of each id the last change that the storage has been given and does not hold yet
    this.others = typeof BroadcastChannel === "function" ? new BroadcastChannel("slm.conversations") : null;
  }

  // Opens the storage and reads it. Without one, conversations live as long as the page.
  async open() {
    try {
      this.database = await opened();
      await this.takeOld();
      await this.read();
    } catch {
      this.database = null;
    }
  }

  // changed() is called when another tab has kept or removed something.
  onChange(changed) {
    if (this.others) this.others.onmessage = changed;
  }

  // Reads what is stored; what cannot be read is left where it is and not shown.
  async read() {
    if (!this.database) return;
    const records = await done(this.database.transaction(RECORDS).objectStore(RECORDS).getAll());
    this.byId.clear();
    for (const record of records) {
      const found = attempt(() => conversationOf(record));
      if (found) this.byId.set(record.id, { ...found, id: record.id });
    }
  }

  // Moves what localStorage holds. An entry is removed there when it is here; one that cannot be read stays.
  async takeOld() {
    const keys = attempt(() => Object.keys(localStorage).filter((key) => key.startsWith(OLD))) ?? [];
    const found = keys.map((key) => [key, attempt(() => entryOf(localStorage.getItem(key)))]).filter(([, each]) => each);
    if (!found.length) return;
    await this.write((records) => {
      for (const [key, each] of found) {
        const id = key.slice(OLD.length);
        const asked = records.get(id);
        asked.onsuccess = () => {
          if (asked.result?.updated > (each.removed ?? each.updated)) return;
          if (each.removed) records.delete(id);
          else records.put({ ...each, id });
        };
      }
    });
    for (const [key] of found) localStorage.removeItem(key);
  }

  write(action) {
    const transaction = this.database.transaction(RECORDS, "readwrite");
    action(transaction.objectStore(RECORDS));
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
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
  async keep(conversation) {
    conversation.name ||= nameFrom(conversation.turns);
    this.byId.set(conversation.id, conversation);
    try {
      await this.change(conversation.id, conversation);
    } catch {
      throw new Error("This browser cannot keep the conversation: its storage is full or switched off. Export what you need, then delete conversations.");
    }
    this.others?.postMessage(conversation.id);
  }

  // Writes a conversation, or deletes it where there is none.
  async change(id, conversation) {
    const change = { conversation };
    this.underway.set(id, change);
    try {
      await this.write((records) => (conversation ? records.put({ id, ...recordOf(conversation) }) : records.delete(id)));
    } finally {
      if (this.underway.get(id) === change) this.underway.delete(id);
    }
  }

  // The page is being left: changes that IndexedDB does not hold yet need not arrive there. The next page that opens the
  // storage takes them over.
  leave() {
    for (const [id, { conversation }] of this.underway) {
      const entry = conversation ? recordOf(conversation) : { removed: Date.now() };
      attempt(() => localStorage.setItem(OLD + id, JSON.stringify(entry)));
    }
  }

  async remove(id) {
    this.byId.delete(id);
    try {
      await this.change(id, null);
      this.others?.postMessage(id);
    } catch {
      // it was never kept
    }
  }
}

function recordOf({ name, updated, system, turns, end, arriving }) {
  return { name, updated, system, turns, end, ...(arriving ? { arriving } : {}) };
}

function entryOf(text) {
  const value = JSON.parse(text);
  return Number.isFinite(value.removed) ? { removed: value.removed } : conversationOf(value);
}

function opened() {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(RECORDS, { keyPath: "id" });
  return done(request);
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function attempt(action) {
  try {
    return action();
  } catch {
    return null;
  }
}
