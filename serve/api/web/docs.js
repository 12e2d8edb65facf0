// A reader of /openapi.json. Everything shown comes from the server this page came from.

import { authorization, key, useKey } from "./api.js";
import { $, copy as copyText, make } from "./dom.js";

let schemas = {};
let keyed = false;

// Text with `code` in it.
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));
}

// -- schemas --------------------------------------------------------------------------------------------------

function resolve(schema) {
  return schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema;
}

function variants(schema) {
  const branches = schema.anyOf?.some((each) => each.type || each.$ref || each.oneOf) ? schema.anyOf : schema.oneOf;
  return branches?.flatMap((each) => (each.oneOf ? each.oneOf : [each]));
}

// In words: "integer", "list of text", "one of "a", "b"", or a schema's name.
function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const several = variants(schema);
  if (several) return [...new Set(several.map(typeOf).filter((each) => each !== "null"))].join(" or ");
  if ("const" in schema) return schema.const === null ? "null" : JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  const types = [schema.type].flat().filter((each) => each && each !== "null");
  if (!types.length) return schema.type === "null" ? "null" : "anything";
  return types.map((type) => {
    if (type === "array") return schema.items ? `list of ${typeOf(schema.items)}` : "list";
    if (type === "object" && schema.additionalProperties?.type) return `object of ${typeOf(schema.additionalProperties)}`;
    return { string: "text", boolean: "true or false" }[type] ?? type;
  }).join(" or ");
}

// Large limits are powers of two, which JavaScript rounds.
function number(value) {
  const size = Math.log2(Math.abs(value) + 1);
  const short = Number.isInteger(size) || Math.abs(value) > Number.MAX_SAFE_INTEGER;
  return Math.abs(value) > 1e6 && short ? `${value < 0 ? "-" : ""}2^${Math.round(size)}` : String(value);
}

function limitsOf(schema) {
  const out = [];
  const several = variants(schema);
  if (several) for (const each of several) out.push(...limitsOf(each));
  const { minimum, maximum, exclusiveMinimum, minLength, maxLength, minItems, maxItems, maxProperties } = schema;
  if (minimum !== undefined && maximum !== undefined) out.push(`${number(minimum)} to ${number(maximum)}`);
  else if (minimum !== undefined) out.push(`at least ${number(minimum)}`);
  else if (exclusiveMinimum !== undefined) out.push(`above ${exclusiveMinimum}${maximum === undefined ? "" : `, at most ${maximum}`}`);
  else if (maximum !== undefined) out.push(`at most ${number(maximum)}`);
  if (minLength) out.push(`at least ${minLength} character${minLength > 1 ? "s" : ""}`);
  if (maxLength !== undefined) out.push(`at most ${maxLength} characters`);
  if (minItems) out.push(`at least ${minItems} entr${minItems > 1 ? "ies" : "y"}`);
  if (maxItems !== undefined) out.push(`at most ${maxItems} entries`);
  if (maxProperties !== undefined) out.push(`at most ${maxProperties} fields`);
  if (schema.items) out.push(...limitsOf(schema.items).map((each) => `each ${each}`));
  return [...new Set(out)];
}

// Objects within a schema that have fields of their own.
function innerOf(schema) {
  const several = variants(schema);
  if (several) return several.flatMap(innerOf);
  if (schema.items) return innerOf(schema.items);
  if (schema.$ref && resolve(schema)?.properties) return [schema];
  return [];
}

function fields(schema, seen = []) {
  const table = make("table", { class: "fields" });
  const isNeeded = (name) => Boolean(schema.required?.includes(name));
  const rows = Object.entries(schema.properties ?? {}).sort(([a], [b]) => isNeeded(b) - isNeeded(a));
  for (const [name, each] of rows) {
    const needed = isNeeded(name);
    const cell = make("td", {}, make("span", { class: "type" }, typeOf(each)));
    const more = limitsOf(each);
    if (!needed && each.default !== undefined && each.default !== null) more.push(`default ${JSON.stringify(each.default)}`);
    if (more.length) cell.append(make("span", { class: "limits" }, ` · ${more.join(" · ")}`));
    if (each.description) cell.append(make("div", {}, ...prose(each.description)));
    for (const inner of innerOf(each)) {
      const title = typeOf(inner);
      if (seen.includes(title)) continue;
      cell.append(make("details", {}, make("summary", {}, `Fields of ${title}`), fields(resolve(inner), [...seen, title])));
    }
    const head = make("th", { class: "name", scope: "row" }, name);
    if (needed) head.append(" ", make("span", { class: "needed" }, "needed"));
    table.append(make("tr", {}, head, cell));
  }
  return table;
}

// -- operations -----------------------------------------------------------------------------------------------

function curl(method, path, body) {
  const parts = [`curl -s${body?.stream ? "N" : ""} ${new URL(`.${path.replace("{model}", "NAME")}`, location).href}`];
  if (keyed) parts.push(`-H "Authorization: Bearer $SLM_API_KEY"`);
  if (body) {
    parts.push("-H 'Content-Type: application/json'");
    parts.push(`-d '${JSON.stringify(body, null, 2).replaceAll("'", "'\\''")}'`);
  }
  return parts.join(" \\\n  ");
}

function examples(method, path, operation) {
  const given = Object.entries(operation.requestBody?.content["application/json"].examples ?? {});
  const choices = given.length ? given.map(([name, each]) => [name, curl(method, path, each.value)]) : [["", curl(method, path)]];
  const code = make("code");
  const bar = make("div", { class: "bar" });
  const buttons = choices.filter(([name]) => name).map(([name, text]) =>
    make("button", { type: "button", onclick: (event) => show(event.currentTarget, text) }, name));
  function show(button, text) {
    code.textContent = text;
    for (const each of buttons) each.setAttribute("aria-pressed", each === button);
  }
  show(buttons[0], choices[0][1]);
  bar.append(...buttons, make("button", { type: "button", class: "copy", onclick: () => copy(code.textContent) }, "Copy"));
  return make("div", { class: "examples" }, bar, make("pre", { tabindex: 0, "aria-label": "Example" }, code));
}

async function copy(text) {
  await copyText(text);
  $("copied").textContent = "Copied";
  setTimeout(() => { $("copied").textContent = ""; }, 1500);
}

function parameters(operation) {
  const given = operation.parameters ?? [];
  if (!given.length) return [];
  const schema = { properties: {}, required: given.filter((each) => each.required).map((each) => each.name) };
  for (const each of given) schema.properties[each.name] = { ...each.schema, description: [each.description, `in the ${each.in}`].filter(Boolean).join("; ") };
  return [make("details", {}, make("summary", {}, "Parameters"), fields(schema))];
}

function answers(operation) {
  const list = make("ul", { class: "answers" });
  for (const [status, answer] of Object.entries(operation.responses)) {
    const item = make("li", {}, make("span", { class: "status" }, status), " ", ...prose(answer.description));
    for (const [type, { schema, "x-event": event }] of Object.entries(answer.content ?? {})) {
      const target = resolve(event ?? schema);
      if (!target?.properties) {
        if (status === "200") item.append(make("div", { class: "quiet" }, type));
        continue;
      }
      const title = event ? `${type}, each event` : type;
      item.append(make("details", {}, make("summary", {}, `${title}: ${typeOf(event ?? schema)}`), fields(target)));
    }
    list.append(item);
  }
  return list;
}

function section(id, method, path, operation) {
  const body = operation.requestBody && resolve(operation.requestBody.content["application/json"].schema);
  return make("section", { class: "operation", id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, make("span", { class: `method ${method}` }, method.toUpperCase()), make("span", { class: "path" }, path)),
    make("p", {}, make("strong", {}, `${operation.summary}.`), " ", ...prose(operation.description ?? "")),
    examples(method, path, operation),
    ...(body ? [make("h3", {}, "Body"), fields(body)] : []),
    ...parameters(operation),
    make("h3", {}, "Answers"),
    answers(operation));
}

function show(schema) {
  schemas = schema.components.schemas;
  keyed = Boolean(schema.security);
  $("about").textContent = schema.info.description;
  const byTag = new Map(schema.tags.map((tag) => [tag.name, []]));
  for (const [path, methods] of Object.entries(schema.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const id = `${method}${path.replaceAll(/[^a-z0-9]+/g, "-")}`;
      byTag.get(operation.tags[0]).push([id, method, path, operation]);
    }
  }
  const nav = [];
  const sections = [];
  for (const [tag, operations] of byTag) {
    const links = operations.map(([id, , path]) => make("li", {}, make("a", { href: `#${id}` }, path)));
    nav.push(make("h2", {}, tag), make("ul", {}, ...links));
    sections.push(...operations.map((each) => section(...each)));
  }
  $("routes").replaceChildren(...nav);
  $("operations").replaceChildren(...sections);
  markPlace();
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

// Marks the route that is on the screen.
function markPlace() {
  const at = [...document.querySelectorAll(".operation")].findLast((each) => each.getBoundingClientRect().top < 120);
  for (const link of document.querySelectorAll("nav a")) {
    if (at && link.hash === `#${at.id}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

async function start() {
  let trouble = "";
  try {
    const response = await fetch("openapi.json", { headers: authorization() });
    $("key-form").hidden = response.status !== 401;
    if (response.ok) show(await response.json());
    else trouble = (await response.json()).error.message;
  } catch (error) {
    trouble = `The server does not answer (${error.message}).`;
  }
  $("problem").textContent = trouble;
  $("problem").hidden = !trouble;
  if (!$("key-form").hidden) $("key").focus();
  document.body.dataset.ready = "yes"; // tells tests that the page is ready
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  try {
    useKey($("key").value);
  } catch (error) {
    $("problem").textContent = error.message;
    $("problem").hidden = false;
    return;
  }
  start();
});
// With a key the file cannot be opened by a link, since a link sends no key.
$("raw").addEventListener("click", async (event) => {
  if (!key()) return;
  event.preventDefault();
  const response = await fetch("openapi.json", { headers: authorization() });
  location.assign(URL.createObjectURL(await response.blob()));
});
addEventListener("scroll", markPlace, { passive: true });
start();
