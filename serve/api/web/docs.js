// The page of the API: Swagger UI over /openapi.json, with the key of this visit. Everything comes from this page's server.

import { authorization, key, useKey } from "./api.js";
import { $ } from "./dom.js";

// Swagger UI is dark where the root has a class.
function followTheme() {
  const theme = document.documentElement.dataset.theme;
  const isDark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.classList.toggle("dark-mode", isDark);
}

// The schema as Swagger UI's older reader takes it, which opens a route in a third of the newer one's time. It knows no
// "const", and no type "null"; that any field may be null stands in the introduction.
function older(value) {
  if (Array.isArray(value)) return value.map(older);
  if (typeof value !== "object" || value === null) return value;
  let made = Object.fromEntries(Object.entries(value).map(([name, each]) => [name, name === "examples" ? each : older(each)]));
  if (made.default === null) delete made.default;
  if ("const" in made && typeof made.const !== "object") made.enum = [made.const];
  if (Array.isArray(made.type)) made.anyOf = made.type.map((type) => ({ type }));
  if (Array.isArray(made.type)) delete made.type;
  if (Array.isArray(made.anyOf)) made.anyOf = made.anyOf.filter((each) => each.type !== "null");
  if (made.anyOf?.length === 1) {
    const { anyOf: [only], ...rest } = made;
    made = only.$ref ? { ...rest, allOf: [only] } : { ...only, ...rest };
  }
  return made;
}

function show(given) {
  const schema = older(given);
  schema.openapi = "3.0.3";
  schema.servers ??= [{ url: new URL(".", location).href.replace(/\/$/, "") }]; // behind a proxy, the API may be in a folder
  delete schema.components.securitySchemes; // the key is asked for above
  delete schema.security;
  self.SwaggerUIBundle({
    spec: schema,
    dom_id: "#api",
    deepLinking: true,
    defaultModelsExpandDepth: -1,
    defaultModelExpandDepth: 2,
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
