// The best known schedules, searchable by operator and shape.
import { useState } from "preact/hooks";
import { ago, latency, speed } from "tunefarm/format.js";
import { useAnswer } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Answer, deviceName, Hash } from "tunefarm/pages/parts.js";

// Rows that the button adds, and the rows of an answer. It is requested once, so that the list stays while it grows.
const PAGE = 50;
const MOST = 200;

export function SchedulesPage() {
  const classes = useAnswer("v1/device-classes");
  const [target, setTarget] = useState(null);
  const [words, setWords] = useState("");
  const key = target ?? classes.value?.items[0]?.key ?? null;
  const [shown, setShown] = useState(PAGE);
  const found = useAnswer(key && `v1/schedules?target=${key}&words=${encodeURIComponent(words)}&limit=${MOST}`);
  const search = (event) => {
    event.preventDefault();
    setWords(new FormData(event.target).get("words").trim());
    setShown(PAGE);
  };
  if (classes.value && !key) return html`<h1>Best schedules</h1><p class="muted">No device has measured anything yet.</p>`;
  return html`
    <h1>Best schedules</h1>
    <form class="card fields" role="search" onSubmit=${search}>
      <label>Operator or shape <input name="words" type="search" placeholder="conv2d 56,56" /></label>
      <label>Device
        <select onChange=${(event) => setTarget(event.target.value)}>
          ${classes.value?.items.map((one) => html`<option value=${one.key} selected=${one.key === key}>${deviceName(classes.value.items, one.key)}</option>`)}
        </select>
      </label>
      <button class="main">Search</button>
      ${key && html`<a class="button" href=${`v1/schedules/export?target=${key}`} download=${`schedules-${key}.json`}>Download all</a>`}
    </form>
    <${Answer} answer=${found}>
      ${({ items }) =>
        items.length
          ? html`<table class="cards">
              <caption class="hidden">Best schedules, the newest subgraphs first</caption>
              <thead><tr><th scope="col">Operator</th><th scope="col" class="number">Latency</th><th scope="col" class="number">Speed</th><th scope="col">Measured</th><th scope="col">Trace</th></tr></thead>
              <tbody>
                ${items.slice(0, shown).map(
                  ({ workload, name, signature, flops, latency_s, created_at }) => html`<tr key=${workload}>
                    <th scope="row" data-label="Operator">${name}${signature && html`<br /><code class="muted">${signature}</code>`}<br /><span class="muted"><${Hash} workload=${workload} /></span></th>
                    <td class="number" data-label="Latency">${latency(latency_s)}</td>
                    <td class="number" data-label="Speed">${speed(flops, latency_s)}</td>
                    <td data-label="Measured">${ago(created_at)}</td>
                    <td data-label="Trace"><a href=${`v1/schedules/best?target=${key}&workload=${workload}`} download=${`${workload}.json`} aria-label=${`Download the schedule of ${name}`}>download</a></td>
                  </tr>`,
                )}
              </tbody>
            </table>
            ${items.length > shown && html`<p><button type="button" onClick=${() => setShown(shown + PAGE)}>More schedules</button></p>`}
            ${items.length === MOST && shown >= MOST && html`<p class="muted">These are the newest ${MOST}: search for words to find others, or download all.</p>`}`
          : html`<p class="muted">No schedule matches.</p>`}
    <//>
  `;
}
