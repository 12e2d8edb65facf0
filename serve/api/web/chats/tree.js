// A conversation's turns as a tree: another version of a turn is another child of the turn before it.
//
// A conversation is {id, name, updated, system, turns, end}. A turn is a message of OpenAI's form with an `id` and the id
// of its `parent` (null for a first one); `end` is the id of the last turn that is shown. While a reply arrives there is
// also `arriving`: {stream, after, turn, begun, model}, the stream's name, the turn after which the reply comes, its own
// turn as soon as there is one (or null), and the message with which it began (or null).

export function randomId() {
  // crypto.randomUUID exists only on pages of https or localhost.
  return crypto.randomUUID?.() ?? [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(system = "") {
  return { id: randomId(), name: "", updated: Date.now(), system, turns: [], end: null };
}

export function turnOf(conversation, id) {
  return conversation.turns.find((each) => each.id === id) ?? null;
}

// The turns from the first one to `end`, or to the one that is shown last.
export function path(conversation, end = conversation.end) {
  const byId = new Map(conversation.turns.map((each) => [each.id, each]));
  const found = [];
  for (let each = byId.get(end); each; each = byId.get(each.parent)) found.push(each);
  return found.reverse();
}

// The versions of a turn, itself among them, in the order in which they came.
export function versions(conversation, turn) {
  return conversation.turns.filter((each) => each.parent === turn.parent);
}

// Adds a turn after the one of an id, and shows it last.
export function add(conversation, parent, message) {
  const turn = { ...message, id: randomId(), parent };
  conversation.turns.push(turn);
  conversation.end = turn.id;
  return turn;
}

// Shows a version of a turn, with what came after it last.
export function show(conversation, turn) {
  let end = turn;
  for (let next = turn; next; next = conversation.turns.findLast((each) => each.parent === end.id)) end = next;
  conversation.end = end.id;
}

// Takes a turn out that nothing follows, and shows `end` last.
export function drop(conversation, turn, end) {
  conversation.turns = conversation.turns.filter((each) => each !== turn);
  conversation.end = end;
}

// The turns of plain messages, one after the other.
export function chain(messages) {
  let parent = null;
  return messages.map((message) => {
    const turn = { ...message, id: randomId(), parent };
    parent = turn.id;
    return turn;
  });
}
