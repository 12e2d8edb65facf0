// The turns of a conversation on the page, each with what can be done with it.

import { path, versions } from "../chats/tree.js";
import { copyButton, icon, iconButton, make } from "../dom.js";
import { editForm } from "./edit_form.js";
import { Markdown } from "./markdown.js";
import { answerForm, reasoning, toolCall } from "./parts.js";
import { tokenElement } from "./tokens.js";

const WHO = { user: "You", assistant: "Model", tool: "Result of a tool" };

export class Transcript {
  constructor(output) {
    this.output = output;
    this.actions = {}; // edit, save, continue, regenerate, choose, answer: set by those who can do it
    this.tokens = new WeakMap(); // of replies of this visit: their tokens with probabilities
    this.forms = new Map(); // of ids: opens the form in which the turn is edited
  }

  // Shows the turns up to `end`; those with tokens as tokens if that is asked for.
  draw(conversation, withTokens, end = conversation.end) {
    this.output.replaceChildren();
    this.forms.clear();
    for (const message of path(conversation, end)) this.add(conversation, message, withTokens);
    this.toEnd();
  }

  add(conversation, message, withTokens) {
    const [turn, text] = this.turn(message);
    const entries = withTokens && this.tokens.get(message);
    if (entries) text.append(...entries.map(tokenElement));
    else if (message.role === "assistant") text.append(...rendered(message));
    else text.append(message.content);
    this.finish(conversation, turn, message);
  }

  // An empty turn, and the element for its text.
  turn({ id, role, model, files }) {
    const text = make("div", { class: "text" });
    const who = make("p", { class: "who" }, (role === "assistant" && model) || WHO[role]);
    const turn = make("article", { class: `turn ${role}`, "data-turn": id ?? null }, who, ...(files ?? []).map(attached), text);
    this.output.append(turn);
    return [turn, text];
  }

  // Ends a turn after its text: its tokens, if it has some, and what can be done with it.
  finish(conversation, turn, message, entries = []) {
    if (entries.length) this.tokens.set(message, entries);
    const text = turn.querySelector(".text");
    if (message.tool_calls?.length && message.id === conversation.end) {
      turn.append(answerForm(message.tool_calls, (results) => this.actions.answer(message, results)));
    }
    const row = make("div", { class: "actions" });
    row.append(...this.arrows(conversation, message));
    if (message.role !== "tool" && message.content) {
      const edit = (words) => this.edit(words, message, text, row);
      this.forms.set(message.id, edit);
      row.append(iconButton("edit", "Edit", () => edit(message.content), { "aria-label": "Edit this message", class: "plain small when-idle" }));
    }
    if (message.content) row.append(copyButton(() => message.content, "copy"));
    const isReply = message.role === "assistant";
    if (isReply && message.content.trim() && !message.tool_calls) {
      row.append(iconButton("go-on", "Continue", () => this.actions.continue(message), { class: "plain small when-idle last-only" }));
    }
    // A message without a reply is the last one when the page was left before the reply began.
    row.append(iconButton("again", isReply ? "Regenerate" : "Get a reply", () => this.actions.regenerate(message), { class: "plain small regenerate when-idle last-only" }));
    turn.append(row);
  }

  // The way to other versions of a turn.
  arrows(conversation, message) {
    const all = versions(conversation, message);
    if (all.length < 2) return [];
    const at = all.indexOf(message);
    const arrow = (name, label, to) => make("button", {
      type: "button", class: "plain small arrow when-idle", "aria-label": label, title: label, "data-off": to ? null : "yes", disabled: to ? null : "",
      onclick: () => this.actions.choose(to, label),
    }, icon(name));
    return [make("span", { class: "versions" }, arrow("previous", "Previous version", all[at - 1]),
      make("span", { class: "quiet" }, `${at + 1}/${all.length}`), arrow("next", "Next version", all[at + 1]))];
  }

  get isEdited() {
    return Boolean(this.output.querySelector(".edit"));
  }

  // Opens the form of a turn again, with words that were not sent.
  editAgain(id, words) {
    this.forms.get(id)?.(words);
  }

  edit(words, message, text, row) {
    const isReply = message.role === "assistant";
    const ways = isReply
      ? [["Save", (given) => this.actions.save(message, given)], ["Save and continue", (given) => this.actions.save(message, given, true)]]
      : [["Send again", (given) => this.actions.edit(message, given)]];
    const form = editForm(words, ways, () => {
      form.replaceWith(text);
      row.hidden = false;
    });
    text.replaceWith(form);
    row.hidden = true;
    form.querySelector("textarea").focus();
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

function attached({ name, text }) {
  const size = `${text.length.toLocaleString("en")} characters`;
  return make("details", { class: "attached" }, make("summary", {}, `${name} · ${size}`), make("pre", { tabindex: 0, "aria-label": name }, text));
}

function rendered(message) {
  const prose = make("div", { class: "prose" });
  new Markdown(prose).update(message.content);
  const thought = message.reasoning_content ? [reasoning(message.reasoning_content)] : [];
  return [...thought, ...(message.content ? [prose] : []), ...(message.tool_calls ?? []).map(toolCall)];
}

