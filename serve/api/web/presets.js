// Presets: a system message and settings under a name.

import { $ } from "./dom.js";
import { kept, keepValue } from "./kept.js";
import * as settings from "./settings.js";

const KEPT = "slm.presets";

let presets = {}; // by name: {system, settings}
let useSystem = () => {};

function show(chosen) {
  const names = Object.keys(presets).sort((a, b) => a.localeCompare(b));
  $("preset").replaceChildren(new Option("choose …", ""), ...names.map((name) => new Option(name, name)));
  $("preset").value = chosen;
  $("preset-delete").disabled = !chosen;
}

function use() {
  const preset = presets[$("preset").value];
  $("preset-delete").disabled = !preset;
  if (!preset) return;
  useSystem(preset.system);
  settings.use(preset.settings);
}

function openForm() {
  $("preset-name").value = $("preset").value;
  $("preset-form").hidden = false;
  $("preset-name").focus();
}

function closeForm() {
  $("preset-form").hidden = true;
  $("preset-save").focus();
}

function save() {
  const name = $("preset-name").value.trim();
  if (!name) return;
  presets[name] = { system: $("system").value, settings: settings.values() };
  keepValue(KEPT, presets);
  show(name);
  closeForm();
}

function remove() {
  delete presets[$("preset").value];
  keepValue(KEPT, presets);
  show("");
  $("preset").focus();
}

// took(system) is called with the system message of a preset that is chosen.
export function start(took) {
  useSystem = took;
  const isPreset = (each) => typeof each?.system === "string" && typeof each.settings === "object" && each.settings !== null;
  presets = Object.fromEntries(Object.entries(kept(KEPT) ?? {}).filter(([, each]) => isPreset(each)));
  show("");
  $("preset").addEventListener("change", use);
  $("preset-save").addEventListener("click", openForm);
  $("preset-cancel").addEventListener("click", closeForm);
  $("preset-delete").addEventListener("click", remove);
  $("preset-form").addEventListener("submit", (event) => { event.preventDefault(); save(); });
}
