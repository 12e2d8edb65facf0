// Tools that a person defines: the model may call them, and the person gives the result.

import { $, button, make } from "./dom.js";
import { kept, keepValue } from "./kept.js";

const KEPT = "slm.tools";
const NAME = /^[\w./-]{1,128}$/;

let tools = []; // {name, description, parameters: JSON Schema, isOn}

// The part of a request's body.
export function body() {
  const used = tools.filter((each) => each.isOn);
  if (!used.length) return {};
  return { tools: used.map(({ name, description, parameters }) => ({ type: "function", function: { name, description, parameters } })) };
}

function isTool(value) {
  return typeof value?.name === "string" && typeof value.description === "string" && typeof value.parameters === "object" && value.parameters !== null;
}

function show() {
  keepValue(KEPT, tools);
  $("tool-list").replaceChildren(...tools.map((tool) => {
    const id = `tool-${tool.name}`;
    const box = make("input", { type: "checkbox", id, onchange: () => { tool.isOn = box.checked; keepValue(KEPT, tools); } });
    box.checked = tool.isOn;
    return make("li", {}, make("label", { for: id, class: "check" }, box, tool.name),
      button("Edit", () => edit(tool), { "aria-label": `Edit the tool ${tool.name}` }),
      button("Delete", () => remove(tool), { "aria-label": `Delete the tool ${tool.name}` }));
  }));
}

function remove(tool) {
  tools = tools.filter((each) => each !== tool);
  show();
  $("tool-new").focus();
}

let edited = null; // the tool in the form, or null for a new one

function edit(tool) {
  edited = tool;
  $("tool-name").value = tool?.name ?? "";
  $("tool-description").value = tool?.description ?? "";
  $("tool-parameters").value = JSON.stringify(tool?.parameters ?? { type: "object", properties: { city: { type: "string" } }, required: ["city"] }, null, 2);
  say("");
  $("tool-form").hidden = false;
  $("tool-new").hidden = true;
  $("tool-name").focus();
}

function close() {
  $("tool-form").hidden = true;
  $("tool-new").hidden = false;
  $("tool-new").focus();
}

function say(text, field = null) {
  $("tool-problem").textContent = text;
  for (const each of $("tool-form").querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.focus();
}

function save() {
  const name = $("tool-name").value.trim();
  if (!NAME.test(name)) return say("A name has letters, digits, and _ . / - only.", $("tool-name"));
  if (tools.some((each) => each.name === name && each !== edited)) return say("There is a tool of this name.", $("tool-name"));
  let parameters;
  try {
    parameters = JSON.parse($("tool-parameters").value);
  } catch (error) {
    return say(`The parameters are not valid JSON (${error.message}).`, $("tool-parameters"));
  }
  if (typeof parameters !== "object" || parameters === null || Array.isArray(parameters)) {
    return say("The parameters must be a JSON Schema of an object.", $("tool-parameters"));
  }
  const made = { name, description: $("tool-description").value.trim(), parameters, isOn: edited?.isOn ?? true };
  tools = edited ? tools.map((each) => (each === edited ? made : each)) : [...tools, made];
  show();
  close();
}

export function start() {
  const found = kept(KEPT);
  tools = Array.isArray(found) ? found.filter(isTool) : [];
  show();
  $("tool-new").addEventListener("click", () => edit(null));
  $("tool-cancel").addEventListener("click", close);
  $("tool-form").addEventListener("submit", (event) => { event.preventDefault(); save(); });
}
