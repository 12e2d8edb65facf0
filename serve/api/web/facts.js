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

// One line about a reply: times in ms of performance.now(), usage and finish reason as the server sent them; maxTokens and
// the model's context in tokens.
export function replyFigures({ began, first, last, nTokens, usage, finish, maxTokens, context }) {
  const parts = [`${nTokens} token${nTokens === 1 ? "" : "s"}`];
  if (first) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  if (nTokens > 1 && last > first) parts.push(`${((nTokens - 1) / ((last - first) / 1000)).toFixed(1)} tokens/s`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`);
  }
  if (finish === "length") parts.push(whyCutOff(usage, maxTokens, context));
  else if (finish && finish !== "stop") parts.push(finish);
  return parts.join(" · ");
}

function whyCutOff(usage, maxTokens, context) {
  if (usage?.completion_tokens >= maxTokens) return "ended at max tokens";
  if (usage?.total_tokens >= context - 1) return "ended at the end of the context";
  return "ended by the time limit";
}
