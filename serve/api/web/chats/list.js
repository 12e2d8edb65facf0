// The list of conversations: open, rename, delete, and find by words.

import { $, button, isComposing, make } from "../dom.js";
import { LONGEST_NAME } from "./checked.js";

const SHOWN = 60; // characters of the place where the words were found

// The conversations that hold all words of a search, wherever: {conversation, place} with the text around the first word
// that is not in the name, or "".
export function found(conversations, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return conversations.map((conversation) => ({ conversation, place: "" }));
  return conversations.flatMap((conversation) => {
    const texts = conversation.turns.flatMap(({ content, reasoning_content: thought, files }) => [content, thought ?? "", ...(files ?? []).map((each) => each.name)]);
    const all = [conversation.name, conversation.system, ...texts];
    const lower = all.map((each) => each.toLowerCase());
    if (!words.every((word) => lower.some((each) => each.includes(word)))) return [];
    const word = words.find((each) => !lower[0].includes(each));
    return [{ conversation, place: word ? around(all.find((each, i) => lower[i].includes(word)), word) : "" }];
  });
}

function around(text, word) {
  const at = text.toLowerCase().indexOf(word);
  const from = Math.max(0, at - 15);
  return `${from ? "…" : ""}${text.slice(from, from + SHOWN).replaceAll(/\s+/g, " ")}${from + SHOWN < text.length ? "…" : ""}`;
}

// actions: open(conversation), rename(conversation, name), remove(conversation).
export function drawList(results, current, actions) {
  const items = results.map(({ conversation: each, place }) => {
    const isCurrent = each.id === current.id;
    const open = button(each.name, () => actions.open(each), { class: "plain name", "aria-current": isCurrent ? "true" : null });
    const item = make("li", {}, open, place ? make("p", { class: "quiet place" }, place) : null);
    if (isCurrent) {
      item.append(make("div", { class: "actions" },
        button("Rename", () => rename(item, open, each, actions)),
        button("Delete", () => actions.remove(each))));
    }
    return item;
  });
  $("chat-list").replaceChildren(...items);
  $("no-chats").hidden = items.length > 0 || !$("search").value.trim();
}

function rename(item, open, conversation, actions) {
  const field = make("input", { type: "text", maxlength: LONGEST_NAME, "aria-label": "Name of the conversation" });
  field.value = conversation.name;
  let isOver = false;
  const end = (name) => {
    if (isOver) return; // replacing the field takes its focus, which ends it a second time
    isOver = true;
    field.replaceWith(open);
    actions.rename(conversation, name || conversation.name);
  };
  field.addEventListener("keydown", (event) => {
    if (isComposing(event)) return;
    if (event.key === "Enter") end(field.value.trim());
    else if (event.key === "Escape") end("");
    else return;
    $("chat-list").querySelector("[aria-current]")?.focus();
    event.preventDefault();
    event.stopPropagation();
  });
  field.addEventListener("blur", () => end(field.value.trim()));
  open.replaceWith(field);
  field.focus();
  field.select();
}
