// The administrators' page of tokens and the audit log.
import { useState } from "preact/hooks";
import { call } from "tunefarm/api.js";
import { ago, time } from "tunefarm/format.js";
import { useAnswer } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Alert, Answer, State } from "tunefarm/pages/parts.js";

const SCOPES = [["read", "see everything"], ["submit", "start and cancel jobs"], ["worker", "run a worker"], ["admin", "everything"]];
const DAY_S = 86400;

// How long before a token's expiry the page warns.
const WARNED_BEFORE_S = 14 * DAY_S;

function endsSoon(token) {
  return token.state === "active" && token.expires_at !== null && token.expires_at - Date.now() / 1e3 < WARNED_BEFORE_S;
}

export function AccessPage() {
  const tokens = useAnswer("v1/tokens");
  const audit = useAnswer("v1/audit?limit=50");
  const [made, setMade] = useState(null);
  const [problem, setProblem] = useState(null);
  const attempt = async (act) => {
    setProblem(null);
    try {
      await act();
      tokens.refresh();
      audit.refresh();
    } catch (refused) {
      setProblem(refused);
    }
  };
  const create = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const days = Number(form.get("days"));
    const request = { name: form.get("name"), scopes: form.getAll("scope"), expires_after_s: days ? days * DAY_S : null };
    attempt(async () => setMade(await call("POST", "v1/tokens", request)));
  };
  const revoke = (token) => confirm(`Revoke the token ${token.name} for good?`) && attempt(() => call("DELETE", `v1/tokens/${encodeURIComponent(token.id)}`));
  return html`
    <h1>Access</h1>
    <form class="card" onSubmit=${create}>
      <h2>A new token</h2>
      <div class="fields">
        <label>Name <input name="name" required maxlength="256" /></label>
        <label>Valid for days <input name="days" type="number" min="1" max="36500" value="90" placeholder="no limit" /></label>
        <fieldset class="scopes"><legend>Scopes</legend>
          ${SCOPES.map(([scope, may]) => html`<label><input type="checkbox" name="scope" value=${scope} /> <b>${scope}</b> <span class="muted">${may}</span></label>`)}
        </fieldset>
        <button class="main">Create</button>
      </div>
      ${made && html`<p class="alert made" role="status">The token of ${made.name}; copy it now, it isn't shown again: <code>${made.token}</code></p>`}
      ${problem && html`<${Alert} problem=${problem} />`}
    </form>
    <${Answer} answer=${tokens}>
      ${({ items }) => html`<section class="card">
        <h2>Tokens</h2>
        ${items.filter(endsSoon).map((token) => html`<p class="alert" key=${token.id}>The token ${token.name} expires on ${time(token.expires_at)}: create another one.</p>`)}
        ${items.length === 0 && html`<p class="muted">None yet.</p>`}
        ${items.length > 0 &&
        html`<table class="cards">
          <caption class="hidden">Tokens, newest first</caption>
          <thead><tr><th scope="col">Name</th><th scope="col">Scopes</th><th scope="col">State</th><th scope="col">Created</th><th scope="col">Expires</th><th scope="col">Used</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
          <tbody>
            ${items.map(
              (token) => html`<tr key=${token.id}>
                <th scope="row" data-label="Name">${token.name}</th>
                <td data-label="Scopes">${token.scopes.join(", ")}</td>
                <td data-label="State"><${State} state=${token.state} /></td>
                <td data-label="Created">${ago(token.created_at)}</td>
                <td data-label="Expires">${token.expires_at === null ? "never" : time(token.expires_at)}</td>
                <td data-label="Used">${token.last_used_at === null ? "never" : ago(token.last_used_at)}</td>
                <td class="actions">${token.state === "active" && html`<button type="button" onClick=${() => revoke(token)} aria-label=${`Revoke ${token.name}`}>Revoke</button>`}</td>
              </tr>`,
            )}
          </tbody>
        </table>`}
      </section>`}
    <//>
    <${Answer} answer=${audit}>
      ${({ items }) => html`<section class="card">
        <h2>Audit log</h2>
        ${!items.length && html`<p class="muted">No changes yet.</p>`}
        ${items.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Audit log">
          <table class="cards audit">
            <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">What</th><th scope="col">Subject</th><th scope="col">Outcome</th><th scope="col">From</th></tr></thead>
            <tbody>
              ${items.map((line) => html`<tr key=${line.id}>
                <th scope="row" data-label="When">${ago(line.at)}</th>
                <td data-label="Who">${line.who}</td>
                <td data-label="What">${line.action}</td>
                <td data-label="Subject">${line.subject}</td>
                <td data-label="Outcome">${line.outcome}${line.times > 1 && ` ×${line.times}`}</td>
                <td data-label="From">${line.address}</td>
              </tr>`)}
            </tbody>
          </table>
        </div>`}
      </section>`}
    <//>
  `;
}
