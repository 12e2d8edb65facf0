// One request and its streamed reply.

import { $ } from "./dom.js";
import { progressText, replyFigures } from "./facts.js";
import { showContext, showProgress } from "./meter.js";
import * as models from "./models.js";
import { paced } from "./paced.js";

// Gives what comes of a stream's `events` to the reply, and shows its figures. Returns when the stream has ended or was
// stopped: {model, usage} as far as the server named them. Throws what else ends it. `follow(action)` keeps the end of
// the text in view while action adds to it. `isLate`: the stream began before this page, so that its speed is not known.
export async function exchange(events, reply, follow, isLate) {
  const isShown = () => reply.place.isConnected; // else other text is open
  const say = (text) => { if (isShown()) $("figures").textContent = text; };
  say(models.isLoaded() ? "" : "The model is being loaded.");
  const figures = { began: performance.now(), first: 0, last: 0, nTokens: 0, isLate };
  const show = () => {
    say(replyFigures(figures));
    if (isShown() && figures.usage) showContext(figures.usage.total_tokens);
  };
  const drawing = paced(() => {
    follow(() => reply.draw());
    show();
  });
  const answered = { model: null, usage: null };
  try {
    for await (const event of events) {
      answered.model = event.model ?? answered.model;
      if (event.prompt_progress && !figures.first && isShown()) {
        showProgress(event.prompt_progress);
        say(progressText(event.prompt_progress));
      }
      if (event.usage) {
        answered.usage = event.usage;
        Object.assign(figures, { usage: event.usage, nTokens: event.usage.completion_tokens });
      }
      figures.dropped = event.dropped_messages ?? figures.dropped;
      const choice = event.choices[0];
      if (!choice) continue;
      figures.finish = choice.finish_reason ?? figures.finish;
      figures.stoppedBy = choice.stopped_by ?? figures.stoppedBy;
      if (!reply.take(choice)) continue;
      figures.last = performance.now();
      if (!figures.first && isShown()) showProgress(null);
      figures.first ||= figures.last;
      drawing.ask();
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
    drawing.end();
    showProgress(null);
    follow(() => reply.end());
  }
  return answered;
}
