// What the page says, where the focus goes, and which panel covers the text on a narrow screen.

import { $ } from "./dom.js";
import * as settings from "./settings.js";

export function problem(text) {
  if ($("problem").textContent !== text) $("problem").textContent = text;
  $("problem").hidden = !text;
  for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

export function notice(text, ...more) {
  $("notice").replaceChildren(text, ...more);
  $("notice").hidden = !text;
}

// Shows an error, and goes to the field that it is about.
export function report(error) {
  problem(error.message);
  if (error.status === 401) {
    $("key-form").hidden = false;
    $("key").focus();
    return;
  }
  const field = settings.fieldNamed(error.field) ?? (error.field && $(error.field));
  if (!field?.matches("input, select, textarea") || field.closest("[hidden]")) return;
  field.setAttribute("aria-invalid", "true");
  if (field.closest("#settings")) showPanel("settings");
  field.focus();
}

// The value of action(), or null after it has failed and the page says why.
export function attempt(action) {
  try {
    return action() ?? true;
  } catch (error) {
    report(error);
    return null;
  }
}

export function busy(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
  $("output").setAttribute("aria-busy", is);
  for (const each of document.querySelectorAll(".when-idle")) each.disabled = is || each.dataset.off === "yes";
  const isIdle = [document.body, $("send"), $("stop")].includes(document.activeElement); // nobody types elsewhere
  if (!is && isIdle && !document.querySelector("[aria-invalid]")) $("prompt").focus({ preventScroll: true });
}

// On narrow screens one panel covers the text: "chats", "settings" or none.
export function showPanel(name) {
  document.body.dataset.panel = name;
  for (const each of ["chats", "settings"]) $(`show-${each}`).setAttribute("aria-expanded", each === name);
}
