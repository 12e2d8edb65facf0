// The conversations, all in memory and kept in this browser's IndexedDB: a record each.

import { conversationOf, nameFrom } from "./checked.js";

const DATABASE = "slm";
const RECORDS = "conversations";
const OPEN = "slm.open";
const OLD = "slm.conversation."; // entries of localStorage: of versions before, and of pages that were left

export class Conversations {
  constructor() {
    this.byId = new Map();
    this.database = null;
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
    const found = keys.map((key) => [key, attempt(() => conversationOf(JSON.parse(localStorage.getItem(key))))]).filter(([, each]) => each);
    if (!found.length) return;
    await this.write((records) => {
      for (const [key, each] of found) {
        const id = key.slice(OLD.length);
        const asked = records.get(id);
        asked.onsuccess = () => { if (!(asked.result?.updated > each.updated)) records.put({ ...each, id }); };
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
      await this.write((records) => records.put({ id: conversation.id, ...recordOf(conversation) }));
    } catch {
      throw new Error("This browser cannot keep the conversation: its storage is full or switched off. Export what you need, then delete conversations.");
    }
    this.others?.postMessage(conversation.id);
  }

  // Keeps a conversation while the page is being left: what IndexedDB is given then need not arrive. The next page that
  // opens the storage takes it over.
  keepNow(conversation) {
    attempt(() => localStorage.setItem(OLD + conversation.id, JSON.stringify(recordOf(conversation))));
  }

  async remove(id) {
    this.byId.delete(id);
    try {
      await this.write((records) => records.delete(id));
      this.others?.postMessage(id);
    } catch {
      // it was never kept
    }
  }
}

function recordOf({ name, updated, system, turns, end, arriving }) {
  return { name, updated, system, turns, end, ...(arriving ? { arriving } : {}) };
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
