// The form in which the words of a turn are changed.

import { button, isComposing, make } from "../dom.js";

// ways: [label, action(words)] of the buttons, of which Enter takes the first. closed() brings the turn back.
export function editForm(words, ways, closed) {
  const area = make("textarea", { rows: Math.min(12, 1 + words.split("\n").length), "aria-label": "Message", spellcheck: "false" });
  area.value = words;
  const take = (action) => { if (area.value.trim()) action(area.value); };
  const [[, first], ...others] = ways;
  const form = make("form", { class: "edit", onsubmit: (event) => { event.preventDefault(); take(first); } }, area,
    make("div", { class: "row" }, make("button", { class: "small when-idle" }, ways[0][0]),
      others.map(([label, action]) => button(label, () => take(action), { class: "plain small when-idle" })), button("Cancel", closed),
      make("span", { class: "quiet" }, "What is there now stays as another version.")));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closed();
    else if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) take(first);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return form;
}
