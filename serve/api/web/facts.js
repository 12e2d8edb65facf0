// What the page says about a model and about a reply.

// One line about a model's card of /v1/models.
export function modelFacts({ status, meta }) {
  const facts = meta ? [
    meta.architecture,
    `${(meta.n_params / 1e6).toFixed(1)} M parameters`,
    `${(meta.size_bytes / 2 ** 20).toFixed(1)} MiB`,
    `context ${meta.context}`,
    `vocabulary ${meta.n_vocab}`,
    meta.chat_template ? "chat template" : "base model",
  ] : ["its file cannot be read"];
  if (status !== "ready") facts.push(status === "unloaded" ? "loaded when asked" : status);
  return facts.join(" · ");
}

// What the server's stopped_by means, for a reply with finish_reason "length".
const STOPPED_BY = {
  max_tokens: "ended at max tokens",
  context: "ended at the end of the context",
  timeout_s: "ended by the time limit",
};

// One line about a prompt that is being read: the server's prompt_progress.
export function progressText({ total, cache, processed, time_ms: ms }) {
  const rate = ms > 0 && processed > cache ? ` · ${((processed - cache) / (ms / 1000)).toFixed(0)} tokens/s` : "";
  return `Reading the prompt: ${processed} of ${total} tokens${rate}`;
}

// One line about a reply: times in ms of performance.now(); usage, finish_reason, stopped_by and dropped_messages as the
// server sent them.
export function replyFigures({ began, first, last, nTokens, usage, finish, stoppedBy, dropped, isLate }) {
  const parts = [`${nTokens} token${nTokens === 1 ? "" : "s"}`];
  if (first && !isLate) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  if (nTokens > 1 && last > first && !isLate) parts.push(`${((nTokens - 1) / ((last - first) / 1000)).toFixed(1)} tokens/s`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`);
  }
  if (dropped) parts.push(`${dropped} oldest message${dropped === 1 ? "" : "s"} dropped`);
  if (finish === "length") parts.push(STOPPED_BY[stoppedBy] ?? "cut off");
  else if (finish && finish !== "stop") parts.push(finish);
  return parts.join(" · ");
}
