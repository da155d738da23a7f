// Names of artifacts, which administrators set, move and delete.
import { useState } from "preact/hooks";
import { call } from "tunefarm/api.js";
import { ago, latency } from "tunefarm/format.js";
import { useAnswer } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Alert, Answer, deviceName } from "tunefarm/pages/parts.js";

export function ReleasesPage({ scopes }) {
  const releases = useAnswer("v1/releases");
  const classes = useAnswer("v1/device-classes");
  const [problem, setProblem] = useState(null);
  const mayChange = scopes.includes("admin");
  const attempt = async (act) => {
    setProblem(null);
    try {
      await act();
      releases.refresh();
    } catch (refused) {
      setProblem(refused);
    }
  };
  const path = (name) => `v1/releases/${encodeURIComponent(name)}`;
  const point = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    attempt(() => call("PUT", path(form.get("name")), { job: form.get("job") }));
  };
  const remove = (one) =>
    confirm(`Delete the name ${one.name}? The artifact stays.`) &&
    attempt(() => call("DELETE", `${path(one.name)}?target=${encodeURIComponent(one.device_class)}`));
  return html`
    <h1>Releases</h1>
    ${mayChange &&
    html`<form class="card" onSubmit=${point}>
      <h2>Set or move a name</h2>
      <div class="fields">
        <label>Name <input name="name" required maxlength="64" placeholder="production" /></label>
        <label>Job <input name="job" required maxlength="256" /></label>
        <button class="main">Set</button>
      </div>
    </form>`}
    ${problem && html`<${Alert} problem=${problem} />`}
    <${Answer} answer=${releases}>
      ${({ items }) => html`<section class="card">
        ${items.length === 0 && html`<p class="muted">No artifact has a name yet.</p>`}
        ${items.length > 0 &&
        html`<table class="cards">
          <caption class="hidden">Releases, by name</caption>
          <thead><tr><th scope="col">Name</th><th scope="col">Device</th><th scope="col">Model</th><th scope="col" class="number">Version</th><th scope="col" class="number">Latency</th><th scope="col">Job</th><th scope="col">Set</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
          <tbody>
            ${items.map(
              (one) => html`<tr key=${`${one.name} ${one.device_class}`}>
                <th scope="row" data-label="Name">${one.name}</th>
                <td data-label="Device">${deviceName(classes.value?.items, one.device_class)}</td>
                <td data-label="Model">${one.model_name}</td>
                <td class="number" data-label="Version">${one.version}</td>
                <td class="number" data-label="Latency">${one.latency_s === null ? "–" : latency(one.latency_s)}</td>
                <td data-label="Job"><a href=${`#/jobs/${encodeURIComponent(one.job)}`}>${one.job}</a></td>
                <td data-label="Set">${ago(one.set_at)}</td>
                <td class="actions">${mayChange && html`<button type="button" onClick=${() => remove(one)} aria-label=${`Delete ${one.name}`}>Delete</button>`}</td>
              </tr>`,
            )}
          </tbody>
        </table>`}
      </section>`}
    <//>
  `;
}
