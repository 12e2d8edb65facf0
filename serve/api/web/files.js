// Text files that go with the next message: chosen, dropped on the page, or pasted.

import { $, icon, make } from "./dom.js";
import { notice, showPanel } from "./page.js";
import { session } from "./session.js";

const LARGEST = 1 << 20; // bytes of a file: more is beyond any context here

let attached = []; // {name, text}

export const list = () => [...attached];

export function clear() {
  put([]);
}

export function put(files) {
  attached = files;
  $("files").hidden = !attached.length;
  $("files").replaceChildren(...attached.map((file) => make("li", {}, file.name,
    make("button", { type: "button", class: "plain small", "aria-label": `Remove ${file.name}`, onclick: () => put(attached.filter((each) => each !== file)) }, icon("remove")))));
}

// The file's text. Throws an Error that says why it has none.
async function read(file) {
  if (file.size > LARGEST) throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MiB; at most 1 MiB can be attached`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError("binary");
    return { name: file.name, text };
  } catch {
    throw new Error(`${file.name} is not text in UTF-8`);
  }
}

async function take(files) {
  const results = await Promise.allSettled([...files].map(read));
  put([...attached, ...results.filter((each) => each.status === "fulfilled").map((each) => each.value)]);
  const refused = results.filter((each) => each.status === "rejected").map((each) => each.reason.message);
  if (refused.length) {
    showPanel("");
    notice(`Not attached: ${refused.join("; ")}.`);
  }
  $("prompt").focus({ preventScroll: true });
}

// Files that are dragged or pasted, if the page takes them now.
const filesOf = (transfer) => (session.mode === "chat" ? [...transfer?.files ?? []] : []);

export function start() {
  $("attach").addEventListener("click", () => $("attach-file").click());
  $("attach-file").addEventListener("change", () => {
    take([...$("attach-file").files]);
    $("attach-file").value = "";
  });
  addEventListener("dragover", (event) => event.preventDefault()); // else the browser leaves the page for the file
  addEventListener("drop", (event) => {
    event.preventDefault();
    if (filesOf(event.dataTransfer).length) take(filesOf(event.dataTransfer));
  });
  $("prompt").addEventListener("paste", (event) => {
    if (!filesOf(event.clipboardData).length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    take(filesOf(event.clipboardData));
  });
}
