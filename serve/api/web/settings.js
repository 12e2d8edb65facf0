// The settings of a request: their fields on the page, and the part of a request's body that they make.

import { $ } from "./dom.js";

const KEPT = "slm.settings";
const NUMBERS = ["max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed"];
const FIELDS = [...NUMBERS, "stop_text", "response_format", "schema", "truncation", "probabilities"];

export function probabilities() {
  return $("probabilities").checked;
}

export function truncation() {
  return $("truncation").value;
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

function keep() {
  const values = Object.fromEntries(FIELDS.map((name) => [name, $(name).type === "checkbox" ? $(name).checked : $(name).value]));
  try {
    localStorage.setItem(KEPT, JSON.stringify(values));
  } catch {
    // kept only as long as the page is open
  }
}

function restore() {
  let values;
  try {
    values = JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return;
  }
  for (const name of FIELDS) {
    if (typeof values[name] === "boolean") $(name).checked = values[name];
    else if (typeof values[name] === "string") $(name).value = values[name];
  }
}

// Brings back the values of the last visit, and keeps those that change. changed() is called where the text is to be
// shown in another way.
export function start(changed) {
  restore();
  showSchema();
  let before = probabilities();
  const take = () => {
    showSchema();
    keep();
    if (probabilities() !== before) changed();
    before = probabilities();
  };
  $("controls").addEventListener("input", take);
  $("defaults").addEventListener("click", () => {
    $("controls").reset();
    take();
  });
}
