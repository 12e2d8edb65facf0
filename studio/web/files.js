// Dropping files and folders, and naming paths: what becomes the sources of a command.

import { api, bytes, html, Problem, Progress, useEffect, useRef, useState } from "./lib.js";

// Files of a drop, folders opened: [{file, name}], the name with its folders.
async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, name: file.name }));
  const found = [];
  const walk = async (entry, prefix) => {
    if (entry.isFile) {
      found.push({ file: await new Promise((take, fail) => entry.file(take, fail)), name: prefix + entry.name });
      return;
    }
    const reader = entry.createReader();
    for (;;) {
      const part = await new Promise((take, fail) => reader.readEntries(take, fail));
      if (!part.length) break;
      for (const each of part) await walk(each, `${prefix}${entry.name}/`);
    }
  };
  for (const entry of entries) await walk(entry, "");
  return found;
}

// Sends one file; `progress` gets the bytes that have gone. fetch() does not tell those.
function put(path, file, progress, signal) {
  return new Promise((take, fail) => {
    const request = new XMLHttpRequest();
    const stop = () => request.abort();
    request.open("PUT", path);
    request.responseType = "json";
    request.upload.onprogress = (event) => progress(event.loaded);
    request.onload = () => (request.status === 200 ? take() : fail(new Error(request.response?.error ?? `Studio answered with status ${request.status}.`)));
    request.onerror = () => fail(new Error(`${file.name ?? "The file"} was not taken: is studio still running, and can the file be read?`));
    request.onabort = () => fail(new DOMException("stopped", "AbortError"));
    request.onloadend = () => signal?.removeEventListener("abort", stop);
    signal?.addEventListener("abort", stop);
    request.send(file);
  });
}

// Sends files, one after the other; the upload's id.
export async function upload(files, progress = () => {}, signal = undefined) {
  const { id } = await api("/api/uploads", {}, { signal });
  const total = files.reduce((sum, each) => sum + each.file.size, 0);
  let sent = 0;
  for (const { file, name } of files) {
    const before = sent;
    progress(sent, total, name);
    await put(`/api/uploads/${id}?name=${encodeURIComponent(name)}`, file, (now) => progress(before + now, total, name), signal);
    signal?.throwIfAborted();
    sent += file.size;
  }
  progress(sent, total, "");
  return id;
}

// The place for files. `take` gets the list of sources whenever it changes: [{upload, label} | {path, label}].
export function Files({ sources, take, what }) {
  const [state, setState] = useState({});
  const [path, setPath] = useState("");
  const input = useRef(), folder = useRef(), abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);
  const send = async (files) => {
    const wanted = files.filter(({ name }) => !name.split("/").some((part) => part.startsWith(".")));
    if (!wanted.length) return;
    const own = abort.current = new AbortController();
    setState({ busy: "…" });
    try {
      const id = await upload(wanted, (sent, total, name) => setState({ busy: `${bytes(sent)} of ${bytes(total)}: ${name}`, share: total ? sent / total : 0 }), own.signal);
      const first = wanted[0].name.split("/")[0]; // the folder, where it is one
      const label = wanted.length === 1 ? wanted[0].name : `${first}${wanted.every(({ name }) => name.startsWith(`${first}/`)) ? "/" : ", …"} (${wanted.length} files)`;
      take([...sources, { upload: id, label }]);
      const hidden = files.length - wanted.length;
      setState(hidden ? { note: `${hidden} hidden ${hidden === 1 ? "file" : "files"} left out` } : {});
    } catch (error) {
      setState(error.name === "AbortError" ? { note: "The upload was stopped." } : { error: error.message });
    }
  };
  const chosen = (event) => {
    send([...event.target.files].map((file) => ({ file, name: file.webkitRelativePath || file.name })));
    event.target.value = "";
  };
  const named = (event) => {
    event.preventDefault();
    if (path.trim()) take([...sources, { path: path.trim(), label: path.trim() }]);
    setPath("");
  };
  const drop = async (event) => {
    event.preventDefault();
    setState({});
    send(await dropped(event.dataTransfer));
  };
  return html`<div class="files">
    <div class="drop ${state.over ? "over" : ""}" onDragOver=${(event) => { event.preventDefault(); setState((now) => ({ ...now, over: true })); }}
      onDragLeave=${() => setState((now) => ({ ...now, over: false }))} onDrop=${drop}>
      <p>Drop ${what} here</p>
      <div class="row">
        <button type="button" onClick=${() => input.current.click()}>Choose files</button>
        <button type="button" class="plain" onClick=${() => folder.current.click()}>Choose a folder</button>
      </div>
      <input type="file" multiple hidden ref=${input} onChange=${chosen} aria-label="Files" />
      <input type="file" webkitdirectory hidden ref=${folder} onChange=${chosen} aria-label="Folder" />
    </div>
    <form class="row" onSubmit=${named}>
      <input class="grow" aria-label="Path" placeholder="or a path here: texts/" value=${path} onInput=${(event) => setPath(event.target.value)} />
      <button class="plain">Add</button>
    </form>
    ${state.busy && html`<div class="row low"><div class="grow"><p class="quiet" role="status">Uploading ${state.busy}</p><${Progress} share=${state.share} label="Upload" /></div>
      <button type="button" class="plain small" onClick=${() => abort.current.abort()}>Stop the upload</button></div>`}
    ${state.note && html`<p class="quiet">${state.note}</p>`}
    <${Problem} text=${state.error} />
    ${sources.length > 0 && html`<ul class="chosen">${sources.map((each, n) => html`<li>
      <span>${each.label}</span>
      <button type="button" class="plain small" aria-label="Remove ${each.label}" onClick=${() => take(sources.filter((_, m) => m !== n))}>Remove</button>
    </li>`)}</ul>`}
  </div>`;
}
