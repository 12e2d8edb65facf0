// Which models the server has, and which one the page uses.

import * as api from "./api.js";
import { $ } from "./dom.js";
import { modelFacts } from "./facts.js";

let cards = []; // of /v1/models
let current = null; // the card of the model that the next request goes to

export const name = () => current?.id ?? "";
export const hasTemplate = () => Boolean(current?.meta?.chat_template);
export const context = () => current?.meta?.context ?? 0;
export const isLoaded = () => current?.status === "ready";
export const areSeveral = () => cards.length > 1;

// Asks the server for its models, and keeps the choice where it can.
export async function load() {
  cards = await api.models();
  $("models-label").hidden = !areSeveral();
  $("model").hidden = areSeveral();
  $("models").replaceChildren(...cards.map((card) => new Option(card.id, card.id)));
  pick(cards.some((card) => card.id === name()) ? name() : cards[0].id);
}

// Shows the facts of a model; the next request goes to it.
export function pick(id) {
  current = cards.find((card) => card.id === id);
  $("models").value = id;
  $("model").textContent = id;
  document.title = `${id} · slm`;
  $("facts").textContent = modelFacts(current);
  if (!current.meta) return;
  $("thinking-label").classList.toggle("unread", current.meta.thinking === false); // its template has no such switch
  $("max_tokens").max = current.meta.context;
  // What a person has typed stays; "Default settings" brings these back.
  for (const name of ["temperature", "top_k", "top_p", "min_p", "repeat_penalty"]) {
    $(name).defaultValue = current.meta.sampling[name];
  }
}
