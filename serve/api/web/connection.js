// A server that does not answer: the page says so, asks again by itself, and at once when told to.

import { $ } from "./dom.js";
import * as models from "./models.js";

const WAITS_MS = [1000, 2000, 4000, 8000];

let attempts = 0;
let timer = 0;
let whenBack = () => {};

export const isAway = () => !$("away").hidden;

// Whether an error means that no server answered.
export const isLost = (error) => error instanceof TypeError || [502, 504].includes(error.status);

// back() is called when the server answers again.
export function start(back) {
  whenBack = back;
  $("retry").addEventListener("click", retry);
  addEventListener("online", () => { if (isAway()) retry(); });
}

export function lost() {
  if (!isAway()) attempts = 0;
  $("away").hidden = false;
  wait();
}

export function found() {
  clearTimeout(timer);
  const hadFocus = document.activeElement === $("retry");
  $("away").hidden = true;
  if (hadFocus) $("prompt").focus({ preventScroll: true });
}

function wait() {
  const ms = WAITS_MS[Math.min(attempts++, WAITS_MS.length - 1)];
  $("away-text").textContent = `The server does not answer. It is asked again every ${ms / 1000} s.`;
  clearTimeout(timer);
  timer = setTimeout(retry, ms);
}

async function retry() {
  clearTimeout(timer);
  $("away-text").textContent = "Asking the server again …";
  try {
    await models.load();
  } catch (error) {
    if (isLost(error)) return wait();
  }
  found();
  whenBack();
}
