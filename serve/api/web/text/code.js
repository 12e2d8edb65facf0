// A block of code: its language, a button that copies it, and its words in colours.

import { copyButton, make } from "../dom.js";
import hljs from "../vendor/highlight.js";

const LONGEST = 50_000; // characters that get colours: a grammar's expressions may go back and forth over hostile text

// highlight.js as nodes instead of HTML text, by the door that lowlight uses.
class Nodes {
  constructor() {
    this.root = document.createDocumentFragment();
    this.open = [this.root];
  }

  addText(text) {
    if (text) this.open.at(-1).append(text);
  }

  startScope(name) {
    const [first, ...rest] = name.split(".");
    const span = make("span", { class: [`hljs-${first}`, ...rest.map((each) => `${each}_`)].join(" ") });
    this.open.at(-1).append(span);
    this.open.push(span);
  }

  endScope() {
    if (this.open.length > 1) this.open.pop();
  }

  openNode(name) { this.startScope(name); }
  closeNode() { this.endScope(); }
  closeAllNodes() { this.open.length = 1; }
  finalize() { this.closeAllNodes(); }
  toHTML() { return ""; }

  // Another language within this one, already highlighted.
  __addSublanguage(other) {
    this.open.at(-1).append(other.root);
  }
}

hljs.configure({ __emitter: Nodes });

function coloured(text, language) {
  if (text.length > LONGEST || !hljs.getLanguage(language)) return text;
  const made = hljs.highlight(text, { language, ignoreIllegals: true });
  return made.errorRaised ? text : made._emitter.root;
}

// A block for code in a language, or "" where none is named.
export function codeBlock(text, info) {
  const language = info.trim().split(/\s/)[0].slice(0, 40);
  const head = make("div", { class: "code-head" }, make("span", {}, language), copyButton(() => text));
  const label = language ? `Code, ${language}` : "Code";
  return make("div", { class: "code" }, head, make("pre", { tabindex: 0, "aria-label": label }, make("code", {}, coloured(text, language))));
}
