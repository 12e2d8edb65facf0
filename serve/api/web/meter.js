// How much of the context a conversation fills, and how much of a prompt is read.

import { $ } from "./dom.js";
import * as models from "./models.js";

// n: tokens of the prompt and the reply together, or null where nobody has counted them.
export function showContext(n) {
  const context = models.context();
  $("context").hidden = !n || !context;
  if ($("context").hidden) return;
  Object.assign($("meter"), { max: context, high: 0.9 * context, optimum: 0, value: Math.min(n, context) });
  $("context-text").textContent = `${n.toLocaleString("en")} of ${context.toLocaleString("en")} tokens of context`;
}

// progress: the server's prompt_progress, or null when the text has begun.
export function showProgress(progress) {
  const isLong = progress && progress.processed < progress.total;
  $("progress").hidden = !isLong;
  if (isLong) Object.assign($("progress"), { max: progress.total, value: progress.processed });
}
