// Elements, and the clipboard. Text goes into the page as text: nothing here or elsewhere parses HTML.

export const $ = (id) => document.getElementById(id);

// An element with attributes ("class", "on..." for listeners) and children: nodes, text, or lists of them. Null and undefined
// are left out.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

export function button(text, onclick, attributes = {}) {
  return make("button", { type: "button", class: "plain small", onclick, ...attributes }, text);
}

// A picture of icons.css, for eyes only.
export const icon = (name) => make("span", { class: `icon i-${name}` });

// A button with a picture and a word. Narrow screens show the picture alone.
export function iconButton(name, text, onclick, attributes = {}) {
  return make("button", { type: "button", class: "plain small", title: text, onclick, ...attributes }, icon(name), make("span", { class: "word" }, text));
}

// A button that copies text() and shows for a moment that it did. In a text it is a word alone: there may be thousands.
export function copyButton(text, picture = null) {
  const made = picture ? iconButton(picture, "Copy", () => press()) : button("Copy", () => press());
  const say = (name, word) => made.replaceChildren(...(picture ? [icon(name), make("span", { class: "word" }, word)] : [word]));
  const press = async () => {
    await copy(text());
    say("done", "Copied");
    setTimeout(() => say(picture, "Copy"), 1500);
  };
  return made;
}

// Whether a key belongs to an input method, which is still making a character. Safari says it by a key code.
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Only pages of https or localhost may use the clipboard; a selection works everywhere.
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
