// Formulas in Markdown: $..$ and \(..\) within a line, $$..$$ and \[..\] on separate lines, drawn by KaTeX.

import { make } from "../dom.js";
import "../vendor/katex/katex.js";

const { katex } = self;
const LONGEST = 4000; // characters of a formula: it is drawn again with each token that follows it in its paragraph

const OPTIONS = { trust: false, strict: "ignore", maxSize: 20, maxExpand: 1000, throwOnError: true };

// The formula's nodes; what KaTeX cannot read stays as it was written.
export function formula(source, isBlock) {
  let tree;
  try {
    tree = katex.__renderToDomTree(source, { ...OPTIONS, displayMode: isBlock });
    withoutStyles(tree);
    tree = tree.toNode();
  } catch {
    tree = make("code", {}, source);
  }
  if (!isBlock) return make("span", { class: "formula" }, tree);
  return make("span", { class: "formula block", tabindex: 0, role: "group", "aria-label": "Formula" }, tree); // wide ones scroll
}

// The page's policy refuses style attributes; those of MathML, which only screen readers meet, change nothing there.
function withoutStyles(tree) {
  const waiting = [tree];
  while (waiting.length) {
    const node = waiting.pop();
    if (node.type && node.attributes) delete node.attributes.style;
    waiting.push(...(node.children ?? []));
  }
}

// The rules for markdown-it: tokens "math_inline" and "math_block" with the formula as content.
export function math(md) {
  md.inline.ruler.before("escape", "math", inline);
  md.block.ruler.before("fence", "math", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

function inline(state, silent) {
  const { src, pos, posMax } = state;
  let close = null;
  let isBlock = false;
  if (src[pos] === "\\" && (src[pos + 1] === "(" || src[pos + 1] === "[")) {
    isBlock = src[pos + 1] === "[";
    close = isBlock ? "\\]" : "\\)";
  } else if (src[pos] === "$") {
    isBlock = src[pos + 1] === "$";
    close = isBlock ? "$$" : "$";
  }
  if (!close) return false;
  const from = pos + close.length;
  const end = close === "$" ? dollarAfter(src, from, posMax) : endOf(state, close, from);
  if (end < 0 || end > posMax || !src.slice(from, end).trim()) return false;
  if (!silent) Object.assign(state.push("math_inline", "", 0), { content: src.slice(from, end), block: isBlock });
  state.pos = end + close.length;
  return true;
}

// The next `close`, or -1. What a text does not hold is looked for once.
function endOf(state, close, from) {
  const missing = (state.env.missing ??= new Map());
  if (missing.get(close) === state.src) return -1;
  const end = state.src.indexOf(close, from);
  if (end < 0) missing.set(close, state.src);
  return end - from > LONGEST ? -1 : end;
}

// Prices are no formulas: no space after the first $ nor before the last one, and no digit after that.
function dollarAfter(src, from, posMax) {
  if (/\s/.test(src[from] ?? " ")) return -1;
  const last = Math.min(posMax, from + LONGEST);
  for (let at = from; at < last; at++) {
    if (src[at] === "\\") at++;
    else if (src[at] === "$") return at > from && !/\s/.test(src[at - 1]) && !/\d/.test(src[at + 1] ?? "") ? at : -1;
  }
  return -1;
}

function block(state, first, last, silent) {
  const from = state.bMarks[first] + state.tShift[first];
  const opening = state.src.slice(from, from + 2);
  const close = { $$: "$$", "\\[": "\\]" }[opening];
  if (!close || state.sCount[first] - state.blkIndent >= 4) return false;
  const lines = [];
  let size = 0;
  for (let line = first; line < last && size <= LONGEST; line++) {
    const start = line === first ? from + 2 : state.bMarks[line] + state.tShift[line];
    if (line > first && state.sCount[line] < state.blkIndent) return false;
    const text = state.src.slice(start, state.eMarks[line]);
    const end = text.indexOf(close);
    if (end >= 0) {
      lines.push(text.slice(0, end));
      if (text.slice(end + 2).trim() || !lines.join("").trim()) return false; // text goes on: a formula within a paragraph
      if (!silent) {
        Object.assign(state.push("math_block", "", 0), { content: lines.join("\n"), map: [first, line + 1] });
        state.line = line + 1;
      }
      return true;
    }
    if (line > first && !text.trim()) return false;
    lines.push(text);
    size += text.length + 1;
  }
  return false;
}
