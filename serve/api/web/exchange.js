// One request and its streamed reply.

import * as api from "./api.js";
import { $ } from "./dom.js";
import { replyFigures } from "./facts.js";
import * as models from "./models.js";

// Sends a request, gives what comes to the reply, and shows its figures. Returns when the stream has ended or was
// stopped, with the name of the model that answered. Throws what else ends it. `follow(action)` keeps the end of the
// text in view while action adds to it.
export async function exchange(path, body, reply, signal, follow) {
  const say = (text) => { if (reply.place.isConnected) $("figures").textContent = text; }; // else other text is open
  say(models.isLoaded() ? "" : "The model is being loaded.");
  const figures = { began: performance.now(), first: 0, last: 0, nTokens: 0 };
  const show = () => say(replyFigures(figures));
  reply.around = follow;
  let answered = null;
  try {
    for await (const event of api.stream(path, body, signal)) {
      answered = event.model ?? answered;
      if (event.usage) Object.assign(figures, { usage: event.usage, nTokens: event.usage.completion_tokens });
      figures.dropped = event.dropped_messages ?? figures.dropped;
      const choice = event.choices[0];
      if (!choice) continue;
      figures.finish = choice.finish_reason ?? figures.finish;
      figures.stoppedBy = choice.stopped_by ?? figures.stoppedBy;
      if (!follow(() => reply.take(choice))) continue;
      figures.last = performance.now();
      figures.first ||= figures.last;
      show();
    }
    show();
  } catch (error) {
    if (error.name !== "AbortError") {
      if (!figures.first) say("");
      throw error;
    }
    figures.finish = "stopped by you";
    show();
  } finally {
    follow(() => reply.end());
  }
  return answered;
}
