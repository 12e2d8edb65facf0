// The page of the API: Swagger UI over /openapi.json, with the key of this visit. Everything comes from this page's server.

import { authorization, key, useKey } from "./api.js";
import { $ } from "./dom.js";

// Swagger UI is dark where the root has a class.
function followTheme() {
  const theme = document.documentElement.dataset.theme;
  const isDark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.classList.toggle("dark-mode", isDark);
}

function show(schema) {
  schema.servers ??= [{ url: new URL(".", location).href.replace(/\/$/, "") }]; // behind a proxy, the API may be in a folder
  delete schema.components.securitySchemes; // the key is asked for above
  delete schema.security;
  self.SwaggerUIBundle({
    spec: schema,
    dom_id: "#api",
    deepLinking: true,
    defaultModelsExpandDepth: -1,
    displayRequestDuration: true,
    validatorUrl: null,
    requestInterceptor: (request) => {
      Object.assign(request.headers, authorization());
      return request;
    },
  });
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
followTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followTheme);
new MutationObserver(followTheme).observe(document.documentElement, { attributeFilter: ["data-theme"] });
start();
