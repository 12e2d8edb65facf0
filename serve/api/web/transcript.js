// The turns of a conversation on the page, each with what can be done with it: copy, edit, regenerate.

import { button, copyButton, isComposing, make } from "./dom.js";
import { Markdown } from "./markdown.js";
import { reasoning, toolCall } from "./reply.js";
import { tokenElement } from "./tokens.js";

const WHO = { user: "You", assistant: "Model", tool: "Tool" };

export class Transcript {
  // actions: edit(position, text) sends a changed message; regenerate(position) asks for the reply at that position.
  constructor(output, actions) {
    this.output = output;
    this.actions = actions;
    this.tokens = new WeakMap(); // of messages of this visit: their tokens with probabilities
    this.forms = new Map(); // of positions: opens the form in which the message is edited
  }

  // Shows the messages; those with tokens as tokens if that is asked for.
  draw(messages, withTokens) {
    this.output.replaceChildren();
    this.forms.clear();
    messages.forEach((message, i) => this.add(message, i, withTokens));
    this.toEnd();
  }

  add(message, i, withTokens) {
    const [turn, text] = this.turn(message);
    const entries = withTokens && this.tokens.get(message);
    if (entries) text.append(...entries.map(tokenElement));
    else if (message.role === "assistant") text.append(...rendered(message));
    else text.append(message.content);
    turn.append(this.actionsOf(message, i, turn, text));
    return turn;
  }

  // An empty turn, and the element for its text.
  turn({ role, model }) {
    const text = make("div", { class: "text" });
    const who = make("p", { class: "who" }, (role === "assistant" && model) || WHO[role]);
    const turn = make("article", { class: `turn ${role}` }, who, text);
    this.output.append(turn);
    return [turn, text];
  }

  // Ends a turn whose reply has arrived as message i.
  finish(turn, message, i, entries) {
    if (entries.length) this.tokens.set(message, entries);
    turn.append(this.actionsOf(message, i, turn, turn.querySelector(".text")));
  }

  actionsOf(message, i, turn, text) {
    const row = make("div", { class: "actions" });
    if (message.role === "user") {
      const edit = (words) => this.edit(words, i, text, row);
      this.forms.set(i, edit);
      row.append(button("Edit", () => edit(message.content), { "aria-label": "Edit this message" }));
    }
    if (message.content) row.append(copyButton(() => message.content));
    // The last turn shows it. A message without a reply is the last one when the page was left before the reply began.
    const [label, position] = message.role === "assistant" ? ["Regenerate", i] : ["Get a reply", i + 1];
    row.append(button(label, () => this.actions.regenerate(position), { class: "plain small regenerate" }));
    return row;
  }

  get isEdited() {
    return Boolean(this.output.querySelector(".edit"));
  }

  // Opens the form for the message at a position again, with words that were not sent.
  editAgain(i, words) {
    this.forms.get(i)?.(words);
  }

  edit(words, i, text, row) {
    const area = make("textarea", { rows: Math.min(12, 1 + words.split("\n").length), "aria-label": "Message", spellcheck: "false" });
    area.value = words;
    const close = () => {
      form.replaceWith(text);
      row.hidden = false;
    };
    const send = () => { if (area.value.trim()) this.actions.edit(i, area.value); };
    const form = make("form", { class: "edit", onsubmit: (event) => { event.preventDefault(); send(); } }, area,
      make("div", { class: "row" }, make("button", { class: "small" }, "Send again"), button("Cancel", close),
        make("span", { class: "quiet" }, "The turns after it are replaced.")));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    text.replaceWith(form);
    row.hidden = true;
    area.focus();
  }

  get isAtEnd() {
    return this.output.scrollHeight - this.output.scrollTop - this.output.clientHeight < 60;
  }

  // Runs an action that adds text, and keeps the end in view if it was.
  follow(action) {
    const wasAtEnd = this.isAtEnd;
    const value = action();
    if (wasAtEnd) this.toEnd();
    return value;
  }

  toEnd() {
    this.output.scrollTop = this.output.scrollHeight;
  }
}

function rendered(message) {
  const prose = make("div", { class: "prose" });
  new Markdown(prose).update(message.content);
  const thought = message.reasoning_content ? [reasoning(message.reasoning_content)] : [];
  return [...thought, ...(message.content ? [prose] : []), ...(message.tool_calls ?? []).map(toolCall)];
}
