// The list of conversations: open, rename, delete, export, import.

import { $, button, isComposing, make } from "./dom.js";
import { LONGEST_NAME } from "./conversations.js";

// actions: open(conversation), rename(conversation, name), remove(conversation).
export function drawList(conversations, current, actions) {
  const items = conversations.map((each) => {
    const isCurrent = each.id === current.id;
    const open = button(each.name, () => actions.open(each), { class: "plain name", "aria-current": isCurrent ? "true" : null });
    const item = make("li", {}, open);
    if (isCurrent) {
      item.append(make("div", { class: "actions" },
        button("Rename", () => rename(item, open, each, actions)),
        button("Delete", () => actions.remove(each))));
    }
    return item;
  });
  $("chat-list").replaceChildren(...items);
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

export function download(text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const day = new Date().toISOString().slice(0, 10);
  make("a", { href: url, download: `slm-conversations-${day}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
