// Markdown as DOM nodes: markdown-it reads it, and its tokens become elements here.
//
// The text comes from a model, so it is never parsed as HTML: elements are made one by one, from a list of kinds, and get
// text nodes. Links lead only to http, https and mailto, and images are shown as links, because the page loads nothing
// from other sites.

import { make } from "../dom.js";
import markdownIt from "../vendor/markdown-it.js";
import { codeBlock } from "./code.js";
import { formula, math } from "./math.js";

const JSON_START = /^\s*(?:\{\s*(?:["}]|$)|\[\s*(?:["{[]|-?\d[\d.]*\s*,))/; // a reply in JSON is shown as it is

const md = markdownIt({ html: false, linkify: true }).use(math);
md.validateLink = (url) => Boolean(address(url));
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

// Shows a text that grows, and replaces only the blocks that changed.
export class Markdown {
  constructor(place) {
    this.place = place;
    this.sources = [];
  }

  update(text) {
    const found = JSON_START.test(text) ? [{ source: `json\n${text}`, make: () => codeBlock(text, "json") }] : blocks(text);
    found.forEach((block, i) => {
      if (this.sources[i] === block.source) return;
      this.sources[i] = block.source;
      const node = block.make();
      if (i < this.place.childNodes.length) this.place.childNodes[i].replaceWith(node);
      else this.place.append(node);
    });
    while (this.place.childNodes.length > found.length) this.place.lastChild.remove();
    this.sources.length = found.length;
  }
}

// The blocks one after the other: {source, make}. Blocks of the same source look the same.
function blocks(text) {
  const env = {};
  const tokens = md.parse(text, env);
  const lines = text.split(/\r\n|\r|\n/);
  const references = Object.keys(env.references ?? {}).join("\n"); // a definition may come after the text that it changes
  const found = [];
  for (let i = 0; i < tokens.length;) {
    const from = i;
    let depth = 0;
    do depth += tokens[i++].nesting; while (depth > 0);
    const [first, last] = tokens[from].map;
    const source = [tokens[from].type, references, ...lines.slice(first, last)].join("\n");
    found.push({ source, make: () => build(tokens.slice(from, i)).firstChild });
  }
  return found;
}

// The absolute address of a link that may be followed, or null. Relative ones would lead into this server.
function address(url) {
  try {
    const { protocol, href } = new URL(url);
    return ["http:", "https:", "mailto:"].includes(protocol) ? href : null;
  } catch {
    return null;
  }
}

function link(url, ...children) {
  return make("a", { href: address(url), target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

const ELEMENTS = new Set("p h1 h2 h3 h4 h5 h6 ul ol li blockquote table thead tbody tr th td em strong s".split(" "));

function opened(token) {
  if (token.type === "link_open") return link(token.attrGet("href"));
  if (!ELEMENTS.has(token.tag)) return make("span");
  const element = make(token.tag);
  if (token.tag === "ol" && token.attrGet("start") !== null) element.start = token.attrGet("start");
  const side = /text-align:(right|center)/.exec(token.attrGet("style") ?? "");
  if (side) element.className = side[1];
  return element;
}

const LEAVES = {
  text: ({ content }) => content,
  text_special: ({ content }) => content,
  softbreak: () => "\n",
  hardbreak: () => make("br"),
  hr: () => make("hr"),
  code_inline: ({ content }) => make("code", {}, content),
  fence: ({ content, info }) => codeBlock(content.replace(/\n$/, ""), info),
  code_block: ({ content }) => codeBlock(content.replace(/\n$/, ""), ""),
  image: (token, parent) => {
    const name = `image: ${token.content || token.attrGet("src")}`;
    return parent.localName === "a" ? name : link(token.attrGet("src"), name);
  },
  math_inline: ({ content, block }) => formula(content, block),
  math_block: ({ content }) => formula(content, true),
};

function build(tokens) {
  const root = document.createDocumentFragment();
  const open = [root];
  const add = (node) => open.at(-1).append(node);
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraph of a list without empty lines
    if (token.type === "inline") add(build(token.children));
    else if (token.nesting < 0) open.pop();
    else if (token.nesting === 0) add(LEAVES[token.type]?.(token, open.at(-1)) ?? token.content);
    else {
      const element = opened(token);
      add(token.tag === "table" ? make("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" }, element) : element);
      open.push(element);
    }
  }
  return root;
}
