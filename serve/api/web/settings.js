// The settings of a request: their fields on the page, and the part of a request's body that they make.

import { $ } from "./dom.js";
import { kept, keepValue } from "./kept.js";

const KEPT = "slm.settings";
const NUMBERS = ["max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed"];
const FIELDS = [...NUMBERS, "stop_text", "response_format", "schema", "truncation", "enable_thinking", "probabilities"];

export function probabilities() {
  return $("probabilities").checked;
}

export function truncation() {
  return $("truncation").value;
}

// The body's fields that let a model reason or not, where the person chose.
export function thinking() {
  const chosen = $("thinking-label").classList.contains("unread") ? "" : $("enable_thinking").value;
  return chosen ? { enable_thinking: chosen === "true" } : {};
}

// The body's fields, in either mode. Throws an Error with the field's label where a value cannot be used.
export function body() {
  const made = {};
  for (const name of NUMBERS) {
    const field = $(name);
    if (!field.checkValidity()) {
      throw Object.assign(new Error(`${labelOf(field)}: ${field.validationMessage}`), { field: name });
    }
    if (field.value !== "") made[name] = Number(field.value);
  }
  if ($("stop_text").value) made.stop = [$("stop_text").value.replaceAll("\\n", "\n")];
  const type = $("response_format").value;
  if (type === "json_object") made.response_format = { type };
  if (type === "json_schema") {
    try {
      made.response_format = { type, json_schema: { name: "page", strict: true, schema: JSON.parse($("schema").value) } };
    } catch (error) {
      throw Object.assign(new Error(`JSON Schema: this is not valid JSON (${error.message}).`), { field: "schema" });
    }
  }
  return made;
}

export function labelOf(field) {
  return field.labels[0].firstChild.textContent.trim();
}

// The element for a field that the server's error names, such as "temperature" or "stop.0".
export function fieldNamed(name) {
  const first = String(name ?? "").split(".")[0];
  if (first === "response_format") return $($("schema-label").hidden ? "response_format" : "schema");
  return { messages: $("prompt"), prompt: $("prompt"), stop: $("stop_text"), model: $("models") }[first] ?? (NUMBERS.includes(first) ? $(first) : null);
}

function showSchema() {
  $("schema-label").hidden = $("response_format").value !== "json_schema";
}

// The value of each field, by its id.
export function values() {
  return Object.fromEntries(FIELDS.map((name) => [name, $(name).type === "checkbox" ? $(name).checked : $(name).value]));
}

function put(given) {
  for (const name of FIELDS) {
    if (typeof given?.[name] === "boolean") $(name).checked = given[name];
    else if (typeof given?.[name] === "string") $(name).value = given[name];
  }
}

// Takes the values of a preset; a field that it does not name gets its default.
export function use(given) {
  $("controls").reset();
  put(given);
  $("controls").dispatchEvent(new Event("input"));
}

// Brings back the values of the last visit, and keeps those that change. changed() is called where the text is to be
// shown in another way.
export function start(changed) {
  put(kept(KEPT));
  showSchema();
  let before = probabilities();
  const take = () => {
    showSchema();
    keepValue(KEPT, values());
    if (probabilities() !== before) changed();
    before = probabilities();
  };
  $("controls").addEventListener("input", take);
  $("defaults").addEventListener("click", () => {
    $("controls").reset();
    take();
  });
}
