// Parts of a reply that are no text of it: reasoning, calls of tools, and the form in which a person answers these.

import { make } from "../dom.js";

function valueText(value) {
  if (typeof value === "string") return value;
  const line = JSON.stringify(value);
  return line.length <= 60 ? line : JSON.stringify(value, null, 2);
}

// What a model has thought before its answer, folded away.
export function reasoning(text) {
  return make("details", { class: "thought" }, make("summary", {}, "Reasoning"), make("div", {}, text));
}

// A call: its name, and its arguments one below the other where they are an object.
export function toolCall({ function: { name, arguments: given } }) {
  const box = make("div", { class: "call" }, make("p", {}, "Tool call: ", make("code", {}, name || "(no name)")));
  let values = null;
  try {
    values = JSON.parse(given);
  } catch {
    // not complete, or not JSON: shown as it is
  }
  if (values && typeof values === "object" && !Array.isArray(values)) {
    const list = make("dl");
    for (const [key, value] of Object.entries(values)) {
      list.append(make("dt", {}, key), make("dd", {}, valueText(value)));
    }
    if (list.children.length) box.append(list);
  } else if (given) {
    box.append(make("pre", { tabindex: 0, "aria-label": "Arguments" }, given));
  }
  return box;
}

// A field for the result of each call. answered(results) gets their texts, one for each call.
export function answerForm(calls, answered) {
  const fields = calls.map(({ function: { name } }) => {
    const area = make("textarea", { rows: 2, spellcheck: "false", required: "" });
    return { area, label: make("label", {}, "Result of ", make("code", {}, name || "the tool"), area) };
  });
  const send = (event) => {
    event.preventDefault();
    answered(fields.map(({ area }) => area.value));
  };
  return make("form", { class: "answers", onsubmit: send }, fields.map(({ label }) => label),
    make("div", { class: "row" }, make("button", { class: "small when-idle" }, calls.length > 1 ? "Send the results" : "Send the result")));
}
