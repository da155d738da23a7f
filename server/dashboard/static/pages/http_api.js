// The HTTP API, from the service's own OpenAPI document: every route with its parameters and an example.
import { useState } from "preact/hooks";
import { useAnswer } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Answer } from "tunefarm/pages/parts.js";

export function ApiPage() {
  const document = useAnswer("openapi.json");
  const [words, setWords] = useState("");
  return html`
    <h1>HTTP API</h1>
    <p>The examples run on this machine as they are. Elsewhere, use the service's address, and add <code>-H "Authorization: Bearer TOKEN"</code>.
      Errors are problem documents (RFC 9457). <a href="openapi.json">openapi.json</a> is for generators of clients.</p>
    <p><label>Search <input type="search" value=${words} onInput=${(event) => setWords(event.target.value)} /></label></p>
    <${Answer} answer=${document}>${(found) => html`<${Routes} paths=${found.paths} words=${words} />`}<//>
  `;
}

function Routes({ paths, words }) {
  const routes = Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({ name: `${method.toUpperCase()} ${path}`, ...operation })),
  );
  const shown = routes.filter((one) => `${one.name} ${one.description}`.toLowerCase().includes(words.trim().toLowerCase()));
  if (!shown.length) return html`<p class="muted">No route matches.</p>`;
  return [...Map.groupBy(shown, (one) => one.tags[0])].map(
    ([tag, alike]) => html`<section class="card" key=${tag}>
      <h2>${tag}</h2>
      ${alike.map((one) => html`<${Route} key=${one.name} route=${one} />`)}
    </section>`,
  );
}

// A text whose words in backticks are code.
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

function Route({ route }) {
  const answers = Object.keys(route.responses).join(", ");
  return html`<details class="route">
    <summary><code>${route.name}</code> ${withCode(route.summary)}</summary>
    ${route.description.split("\n\n").slice(1).map((text) => html`<p>${withCode(text)}</p>`)}
    <pre tabindex="0">${route["x-codeSamples"][0].source}</pre>
    ${route.parameters && html`<dl class="pairs">${route.parameters.map((one) => html`<dt><code>${one.name}</code></dt><dd>${one.in}${one.required ? ", required" : ""}${one.example !== undefined && html`, such as <code>${one.example}</code>`}</dd>`)}</dl>`}
    <p class="muted">Status codes: ${answers}</p>
  </details>`;
}
