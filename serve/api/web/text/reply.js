// A reply that arrives in pieces: its text, tokens and tool calls, and their place on the page.

import { make } from "../dom.js";
import { Markdown } from "./markdown.js";
import { reasoning, toolCall } from "./parts.js";
import { tokenElement } from "./tokens.js";

export class Reply {
  // form: "markdown" or "plain". Tokens with probabilities are shown as tokens in either. `begun`: the message that the
  // reply goes on with.
  constructor(place, form, begun = null) {
    this.place = place;
    this.form = form;
    this.text = begun?.content ?? "";
    this.thought = begun?.reasoning_content ?? ""; // what a model that reasons says before its answer
    this.thinking = null; // the element that shows it
    this.entries = []; // of tokens: {text, logprob, name, id, top}
    this.calls = []; // {id, type, function: {name, arguments}}
    this.decoder = new TextDecoder(); // one over all tokens: a character may be split among them
    this.nTokens = 0; // of the prompt and the reply together, when the server has counted them
    this.points = 0; // characters shown, as the server counts them
    this.markdown = null;
    this.fresh = document.createDocumentFragment(); // what came since the last drawing, where that is only added
    if (begun) this.draw();
  }

  get isEmpty() {
    return !this.text && !this.thought && !this.calls.length;
  }

  message(model) {
    const message = { role: "assistant", content: this.text, model };
    if (this.thought) message.reasoning_content = this.thought;
    if (this.calls.length) message.tool_calls = this.calls.filter(Boolean);
    if (this.nTokens) message.n_tokens = this.nTokens;
    return message;
  }

  // Takes what a chunk brings, for the next drawing; returns whether that is anything.
  take(choice) {
    const text = choice.delta ? choice.delta.content ?? "" : choice.text;
    const thought = choice.delta?.reasoning_content ?? "";
    this.text += text;
    this.thought += thought;
    for (const piece of choice.delta?.tool_calls ?? []) this.takeCall(piece);
    const entries = choice.logprobs ? this.entriesOf(choice.logprobs, text) : [];
    this.entries.push(...entries);
    if (entries.length) this.fresh.append(...entries.map(tokenElement));
    else if (text && this.form === "plain") this.fresh.append(text);
    return Boolean(entries.length || text || thought || choice.delta?.tool_calls);
  }

  // A call comes in pieces that have its index: id and name first, then the arguments' text.
  takeCall({ index, id, type, function: part }) {
    const call = (this.calls[index ?? this.calls.length] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (id) call.id = id;
    if (type) call.type = type;
    call.function.name += part?.name ?? "";
    call.function.arguments += part?.arguments ?? "";
  }

  // Shows what came. The browser then lays the whole reply out again: not for each token of a fast model.
  draw() {
    this.place.append(this.fresh);
    if (this.form === "plain" || this.entries.length) return;
    if (this.thought && !this.thinking) {
      this.thinking = reasoning("");
      this.thinking.open = true; // while there is nothing else to see
      this.place.prepend(this.thinking);
    }
    if (this.thinking) this.thinking.lastChild.textContent = this.thought;
    if (this.text && !this.markdown) {
      this.markdown = new Markdown(make("div", { class: "prose" }));
      if (this.thinking) {
        this.thinking.open = false;
        this.thinking.after(this.markdown.place);
      } else {
        this.place.prepend(this.markdown.place);
      }
    }
    this.markdown?.update(this.text);
    for (const each of this.place.querySelectorAll(":scope > .call")) each.remove();
    this.place.append(...this.calls.filter(Boolean).map(toolCall));
  }

  end() {
    this.calls = this.calls.filter(Boolean);
    this.draw();
  }

  entriesOf(logprobs, text) {
    if (logprobs.content) {
      return logprobs.content.map((each) => ({
        text: this.decoder.decode(new Uint8Array(each.bytes), { stream: true }),
        logprob: each.logprob,
        name: each.token,
        id: each.bytes.join(), // tokens that are no whole characters share a spelling
        top: each.top_logprobs.map((one) => [one.token, one.logprob, one.bytes.join()]),
      }));
    }
    // Offsets count characters from the reply's beginning; the last token's text goes on to the chunk's end.
    const characters = Array.from(text);
    const start = this.points;
    this.points += characters.length;
    return logprobs.tokens.map((name, i) => {
      const from = i ? logprobs.text_offset[i] - start : 0;
      const to = i + 1 < logprobs.tokens.length ? logprobs.text_offset[i + 1] - start : characters.length;
      const top = Object.entries(logprobs.top_logprobs[i]).map(([other, value]) => [other, value, other]);
      return { text: characters.slice(from, to).join(""), logprob: logprobs.token_logprobs[i], name, id: name, top };
    });
  }
}
