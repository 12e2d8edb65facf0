// Markdown as DOM nodes: headings, paragraphs, lists, quotes, tables, code, emphasis and links.
//
// The text comes from a model, so it is never parsed as HTML: elements are made one by one and get text nodes. Links lead
// only to http, https and mailto, and images are shown as links, because the page loads nothing from other sites.
// The work grows in proportion to the text, whatever it holds.

import { copyButton, make } from "./dom.js";

const MOST_COLUMNS = 100; // of a table
const DEEPEST = 8; // levels of lists, quotes and emphasis; what is deeper stays as it was written

const JSON_START = /^\s*(?:\{\s*(?:["}]|$)|\[\s*(?:["{[]|-?\d[\d.]*\s*,))/; // a reply in JSON is shown as it is

// Shows a text that grows, and replaces only the blocks that changed.
export class Markdown {
  constructor(place) {
    this.place = place;
    this.sources = [];
  }

  update(text) {
    const lines = text.split(/\r\n|\r|\n/);
    const found = JSON_START.test(text) ? [{ kind: "code", lines, language: "json" }] : split(lines);
    found.forEach((block, i) => {
      const source = `${block.kind}\n${block.lines.join("\n")}`;
      if (this.sources[i] === source) return;
      this.sources[i] = source;
      const node = build(block, 0);
      if (i < this.place.childNodes.length) this.place.childNodes[i].replaceWith(node);
      else this.place.append(node);
    });
    while (this.place.childNodes.length > found.length) this.place.lastChild.remove();
    this.sources.length = found.length;
  }
}

// -- blocks ---------------------------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( |$)/;
const isRule = (line) => /^(-{3,}|\*{3,}|_{3,})$/.test(line.replaceAll(/[ \t]/g, ""));
const isBlank = (line) => !line.trim();
const isDelimiter = (line) => line !== undefined && /^[ \t|:-]+$/.test(line) && line.includes("-") && line.includes("|");
const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || isRule(line) || ITEM.test(line);

// Blocks one after the other: {kind, lines}, and what belongs to the kind.
function split(lines) {
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    const from = i++;
    if (isBlank(line)) continue;
    const fence = FENCE.exec(line);
    if (fence) {
      const closes = (each) => closesFence(each, fence[1]);
      while (i < lines.length && !closes(lines[i])) i++;
      blocks.push({ kind: "code", lines: lines.slice(from + 1, i), language: fence[2].trim() });
      i++; // its closing fence, if there is one
    } else if (HEADING.test(line)) {
      blocks.push({ kind: `h${HEADING.exec(line)[1].length}`, lines: [headingText(line)] });
    } else if (isRule(line)) {
      blocks.push({ kind: "hr", lines: [] });
    } else if (QUOTE.test(line)) {
      while (i < lines.length && QUOTE.test(lines[i])) i++;
      blocks.push({ kind: "blockquote", lines: lines.slice(from, i).map((each) => each.replace(/^ {0,3}> ?/, "")) });
    } else if (ITEM.test(line)) {
      i = endOfList(lines, from);
      blocks.push({ kind: /\d/.test(ITEM.exec(line)[2]) ? "ol" : "ul", lines: lines.slice(from, i) });
    } else if (line.includes("|") && isDelimiter(lines[i])) {
      while (i < lines.length && lines[i].includes("|")) i++;
      blocks.push({ kind: "table", lines: lines.slice(from, i) });
    } else {
      while (i < lines.length && !isBlank(lines[i]) && !startsBlock(lines[i])) i++;
      blocks.push({ kind: "p", lines: lines.slice(from, i) });
    }
  }
  return blocks;
}

function closesFence(line, opening) {
  const text = line.trim();
  return text.length >= opening.length && text === opening[0].repeat(text.length);
}

function headingText(line) {
  const text = line.trim().replace(/^#+/, "");
  let end = text.length;
  while (end && text[end - 1] === "#") end--;
  return (end === 0 || " \t".includes(text[end - 1]) ? text.slice(0, end) : text).trim();
}

const indent = (line) => line.length - line.trimStart().length;
// Where the text of an item begins in its line.
const textAt = (item) => item[0].length + (item[3] ? 0 : 1);

// A list goes on over indented lines, over blank lines before those, and to items of the same kind.
function endOfList(lines, from) {
  const first = ITEM.exec(lines[from]);
  const ordered = /\d/.test(first[2]);
  let end = from + 1;
  for (let i = end; i < lines.length; i++) {
    if (isBlank(lines[i])) continue;
    const item = ITEM.exec(lines[i]);
    const isNext = item && !isRule(lines[i]) && (indent(lines[i]) >= textAt(first) || /\d/.test(item[2]) === ordered);
    const goesOn = i === end && !startsBlock(lines[i]); // a wrapped line
    if (!isNext && !goesOn && indent(lines[i]) < 2) break;
    end = i + 1;
  }
  return end;
}

function itemsOf(lines) {
  const items = [];
  let start = 0;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (!items.length || item[1].length < start)) {
      start = textAt(item);
      items.push([line.slice(item[0].length)]);
    } else {
      items.at(-1).push(line.slice(Math.min(indent(line), start)));
    }
  }
  return items;
}

function build(block, depth) {
  const { kind, lines } = block;
  if (kind === "code") return codeBlock(lines.join("\n"), block.language);
  if (kind === "hr") return make("hr");
  if (kind === "table") return table(lines);
  if (depth >= DEEPEST && ["ul", "ol", "blockquote"].includes(kind)) return make("p", {}, lines.join("\n"));
  const inner = (each) => split(each).map((one) => build(one, depth + 1));
  if (kind === "blockquote") return make("blockquote", {}, inner(lines));
  if (kind === "ul" || kind === "ol") {
    const list = make(kind, {}, itemsOf(lines).map((item) => make("li", {}, inner(item))));
    if (kind === "ol") list.start = parseInt(ITEM.exec(lines[0])[2], 10);
    return list;
  }
  return make(kind, {}, inline(lines.map((line) => line.trim()).join("\n"), 0));
}

function codeBlock(text, language) {
  const head = make("div", { class: "code-head" }, make("span", {}, language.slice(0, 40)), copyButton(() => text));
  const label = language ? `Code, ${language.slice(0, 40)}` : "Code";
  return make("div", { class: "code" }, head, make("pre", { tabindex: 0, "aria-label": label }, make("code", {}, text)));
}

function table(lines) {
  const [head, delimiters, ...body] = lines.map(cells);
  const sides = delimiters.map((each) => (each.endsWith(":") ? (each.startsWith(":") ? "center" : "right") : ""));
  if (head.length > MOST_COLUMNS) return make("p", {}, lines.join("\n"));
  const row = (texts, tag) => make("tr", {}, head.map((_, i) => make(tag, { class: sides[i] ?? "" }, inline(texts[i] ?? "", 0))));
  const made = make("table", {}, make("thead", {}, row(head, "th")), make("tbody", {}, body.map((each) => row(each, "td"))));
  return make("div", { class: "table" }, made);
}

function cells(line) {
  const bare = line.trim().replace(/^\|/, "");
  const parts = bare.split(/(?<!\\)\|/).map((each) => each.replaceAll("\\|", "|").trim());
  if (bare.endsWith("|")) parts.pop();
  return parts;
}

// -- text within a block --------------------------------------------------------------------------------------

const PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
const LINK = /!?\[((?:\\.|[^\[\]\\]){0,1000})\]\( {0,9}<?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,500}\))?)>? {0,9}(?:"[^"\n]{0,500}")? {0,9}\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`()\[\]]{1,2000}/y;
const isWord = (character) => character !== undefined && /[\p{L}\p{N}_]/u.test(character);
const isSpace = (character) => character === undefined || /\s/.test(character);

// Nodes for text with code, emphasis and links in it. Below DEEPEST no emphasis, in a link also no other link.
export function inline(text, depth) {
  const nodes = [];
  const missing = new Set(); // marks that have no end in the rest of the text: looked for once
  let plain = "";
  for (let i = 0; i < text.length;) {
    const c = text[i];
    let found = null; // [node, where the text goes on], or [null, ...] for marks that stay as they are
    if (c === "\\" && PUNCTUATION.includes(text[i + 1] ?? " ")) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    if (c === "`") found = codeSpan(text, i, missing);
    else if (depth < DEEPEST && "*_~".includes(c)) found = emphasis(text, i, depth, missing);
    else if (depth <= DEEPEST && (c === "[" || (c === "!" && text[i + 1] === "["))) found = link(text, i);
    else if (depth <= DEEPEST && c === "h" && !isWord(text[i - 1])) found = address(text, i);
    if (found?.[0]) {
      if (plain) nodes.push(plain);
      plain = "";
      nodes.push(found[0]);
    } else {
      plain += found ? text.slice(i, found[1]) : c;
    }
    i = found ? found[1] : i + 1;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function runAt(text, i) {
  let end = i;
  while (text[end] === text[i]) end++;
  return end - i;
}

function codeSpan(text, i, missing) {
  const marks = "`".repeat(runAt(text, i));
  const from = i + marks.length;
  if (!missing.has(marks)) {
    for (let at = text.indexOf(marks, from); at >= 0;) {
      const length = runAt(text, at);
      if (length === marks.length) {
        let code = text.slice(from, at);
        if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
        return [make("code", {}, code), at + length];
      }
      at = text.indexOf(marks, at + length);
    }
    missing.add(marks);
  }
  return [null, from];
}

const ELEMENTS = { 1: ["em"], 2: ["strong"], 3: ["em", "strong"] };

function emphasis(text, i, depth, missing) {
  const mark = text[i];
  const length = runAt(text, i);
  const from = i + length;
  const marks = text.slice(i, from);
  const opens = !isSpace(text[from]) && !(mark === "_" && isWord(text[i - 1])) && (mark === "~" ? length === 2 : length <= 3);
  if (!opens || missing.has(marks)) return [null, from];
  const end = closing(text, from, mark, length);
  if (end < 0) {
    missing.add(marks);
    return [null, from];
  }
  const inner = inline(text.slice(from, end), depth + 1);
  const [outer, ...rest] = mark === "~" ? ["del"] : ELEMENTS[length];
  const node = make(outer, {}, rest.length ? make(rest[0], {}, inner) : inner);
  return [node, end + length];
}

// Where the marks that end an emphasis begin, or -1. A longer run gives its last marks, as in **a *b***.
function closing(text, from, mark, length) {
  for (let at = text.indexOf(mark, from); at >= 0;) {
    const run = runAt(text, at);
    const fits = run === length || (run === 3 && length < 3);
    if (fits && !isSpace(text[at - 1]) && text[at - 1] !== "\\" && !(mark === "_" && isWord(text[at + run]))) return at + run - length;
    at = text.indexOf(mark, at + run);
  }
  return -1;
}

function anchor(url, children) {
  let parsed;
  try {
    parsed = new URL(url);
  } catch {
    return null; // relative: it would lead into this server
  }
  if (!["http:", "https:", "mailto:"].includes(parsed.protocol)) return null;
  return make("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

function link(text, i) {
  LINK.lastIndex = i;
  const match = LINK.exec(text);
  const isImage = text[i] === "!";
  const made = match && anchor(match[2], isImage ? [`image: ${match[1] || match[2]}`] : inline(match[1], DEEPEST + 1));
  return made ? [made, LINK.lastIndex] : null;
}

function address(text, i) {
  ADDRESS.lastIndex = i;
  const match = ADDRESS.exec(text);
  if (!match) return null;
  let url = match[0];
  while (".,;:!?*_~".includes(url.at(-1))) url = url.slice(0, -1);
  const made = anchor(url, [url]);
  return made ? [made, i + url.length] : null;
}
