// Requests to the server that this page came from.

let given = ""; // the key, for browsers that keep nothing

export function key() {
  try {
    return sessionStorage.getItem("key") ?? given;
  } catch {
    return given;
  }
}

// Takes a key for this visit. Throws an Error where no request can carry it.
export function useKey(text) {
  try {
    new Headers({ Authorization: `Bearer ${text}` });
  } catch {
    throw new Error("This is not the server's key: it has a character that no request can carry.");
  }
  given = text;
  try {
    sessionStorage.setItem("key", text);
  } catch {
    // known as long as the page is open
  }
}

export function authorization() {
  return key() ? { Authorization: `Bearer ${key()}` } : {};
}

export function headers() {
  return { "Content-Type": "application/json", ...authorization() };
}

// The server's own words about a failed request, its status, and the field that is meant.
async function failure(response) {
  let error = {};
  try {
    error = (await response.json()).error;
  } catch {
    // not JSON of ours
  }
  const made = new Error(error.message ?? `The server answered with status ${response.status}.`);
  return Object.assign(made, { status: response.status, field: error.param });
}

// A path of the server. Behind a proxy, the page may be in a folder: addresses are relative to that.
export function at(path) {
  return `.${path}`;
}

export async function models() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw await failure(response);
  return (await response.json()).data;
}

// A file of the server, for which a link is not enough where it asks for a key.
export async function blob(path) {
  const response = await fetch(at(path), { headers: headers() });
  if (!response.ok) throw await failure(response);
  return response.blob();
}

// Sends a request and yields the objects of its stream of server-sent events. With an `id`, the stream goes on for a while
// when the page is left, and resumed() reads it again.
export async function* stream(path, body, signal, id = null) {
  const named = id ? { "X-Conversation-Id": id } : {};
  yield* events(await fetch(at(path), { method: "POST", headers: { ...headers(), ...named }, body: JSON.stringify(body), signal }));
}

const kept = (id) => at(`/v1/stream?conv_id=${encodeURIComponent(id)}`);

// The objects of a stream that has gone on meanwhile, from its beginning. Throws where there is none.
export async function resumed(id, signal) {
  const response = await fetch(kept(id), { headers: authorization(), signal });
  if (!response.ok) throw await failure(response);
  return events(response);
}

// Ends such a stream, if it runs. Whether there is one is not asked.
export function end(id) {
  fetch(kept(id), { method: "DELETE", headers: headers() }).catch(() => {});
}

// The end is "[DONE]"; an end without it is a failure.
async function* events(response) {
  if (!response.ok) throw await failure(response);
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of chunks(response.body)) {
    const parts = (rest + decoder.decode(bytes, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      // Other lines are comments: the server sends one now and then, so that nobody takes it for dead.
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (!data) continue;
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
