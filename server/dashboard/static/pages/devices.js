// The workers: their current work, their health, and their devices' limits.
import { useState } from "preact/hooks";
import { call } from "tunefarm/api.js";
import { ago, bytes, cacheSize, digits, latency, percent, plural, scaled, time } from "tunefarm/format.js";
import { useAnswer, useForm } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Alert, Answer, State } from "tunefarm/pages/parts.js";
import { machineLimits } from "tunefarm/series.js";

// The most minutes of a reservation: a week.
const MAX_RESERVATION = 10080;
// A larger spread is a sign of disturbances, as for the service.
const NOISY = 0.25;

export function DevicesPage({ scopes, who }) {
  const workers = useAnswer("v1/workers", 3);
  const classes = useAnswer("v1/device-classes", 30);
  const isAdmin = scopes.includes("admin");
  // Without tokens, a service can't tell whose jobs are whose.
  const tokens = useAnswer(isAdmin && who !== "loopback" ? "v1/tokens" : null);
  const holders = tokens.value?.items.filter(({ state, scopes: may }) => state === "active" && may.some((one) => one === "submit" || one === "admin"));
  return html`
    <h1>Devices</h1>
    <${Answer} answer=${workers}>
      ${({ items }) =>
        items.length
          ? html`<div class="two">${items.map((one) => html`<${Worker} key=${one.id} worker=${one} isAdmin=${isAdmin} holders=${holders} onChange=${workers.refresh} />`)}</div>`
          : html`<p>No worker yet.</p>`}
    <//>
    <${Attach} isOpen=${workers.value?.items.length === 0} />
    <${Answer} answer=${classes}>${({ items }) => items.map((one) => html`<${DeviceClass} key=${one.key} device=${one} />`)}<//>
  `;
}

function isLoopback(host) {
  return host === "localhost" || host === "[::1]" || host.startsWith("127.");
}

// The instructions to attach a device, which then appears above.
function Attach({ isOpen }) {
  const script = new URL("install", location.href.split("#")[0]);
  if (isLoopback(script.hostname)) {
    return html`<details class="card" open=${isOpen}>
      <summary>Attach a device</summary>
      <p>Other machines can't reach <code>${script.host}</code>. Start the service so that they can, and open this page by the machine's name:</p>
      <pre tabindex="0"><code>tunefarm up --host 0.0.0.0 --token SECRET</code></pre>
    </details>`;
  }
  return html`<details class="card" open=${isOpen}>
    <summary>Attach a device</summary>
    <p>Run this on the device. It downloads a script to read first, and runs it:</p>
    <pre tabindex="0"><code>curl -fsS ${script.href} -o tunefarm-install && less tunefarm-install && sudo sh tunefarm-install</code></pre>
    <p>It asks for a token with the scope <code>worker</code>, which an administrator makes on the page <a href="#/access">Access</a>. The device appears here as soon as it calls.</p>
  </details>`;
}

function Worker({ worker, isAdmin, holders, onChange }) {
  const [problem, setProblem] = useState(null);
  const { isOpen: isReserving, setOpen: setReserving, form: formRef, button, onKeyDown } = useForm();
  const act = (action, body) => async () => {
    setProblem(null);
    try {
      await call("POST", `v1/workers/${encodeURIComponent(worker.id)}:${action}`, body);
      setReserving(false);
      onChange();
    } catch (refused) {
      setProblem(refused);
    }
  };
  const reserve = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    act("reserve", { minutes: Number(form.get("minutes")), holder: form.get("holder") || null })();
  };
  const { value } = useAnswer(worker.role === "measure" ? `v1/workers/${encodeURIComponent(worker.id)}/noise` : null, 15);
  const noise = value?.noise ?? null;
  const state = !worker.connected ? "lost" : worker.desired_state === "evicted" ? "evicted" : worker.state;
  const kinds = Object.entries(worker.failures_by_kind).map(([kind, number]) => `${kind.replaceAll("_", " ")} ${number}`);
  const does = worker.role === "build" ? "build" : "measure";
  return html`<section class="card">
    <div class="title"><h2>${worker.id} <${State} state=${state} /></h2>
      ${isAdmin &&
      html`<div class="actions">
        ${worker.desired_state === "work"
          ? html`<button type="button" onClick=${act("drain")} aria-label=${`Drain ${worker.id}`}>Drain</button>
              <button type="button" onClick=${act("evict")} aria-label=${`Evict ${worker.id}`}>Evict</button>`
          : html`<button type="button" onClick=${act("resume")} aria-label=${`Resume ${worker.id}`}>Resume</button>`}
        ${worker.other_version && worker.desired_state === "work" && html`<button type="button" onClick=${act("update")} aria-label=${`Update ${worker.id}`}>Update</button>`}
        ${worker.role === "measure" &&
        html`<button type="button" aria-disabled=${worker.calibrate} onClick=${worker.calibrate ? undefined : act("calibrate")} aria-label=${`Calibrate ${worker.id}`}>${worker.calibrate ? "Calibrates soon" : "Calibrate"}</button>`}
        ${worker.reserved_for !== null
          ? html`<button type="button" onClick=${act("unreserve")} aria-label=${`End the reservation of ${worker.id}`}>End reservation</button>`
          : holders && worker.role === "measure" && html`<button type="button" ref=${button} onClick=${() => setReserving(!isReserving)} aria-expanded=${isReserving} aria-label=${`Reserve ${worker.id}`}>Reserve</button>`}
      </div>`}
    </div>
    ${isReserving &&
    html`<form class="fields" ref=${formRef} onSubmit=${reserve} onKeyDown=${onKeyDown}>
      <label>Reserve for <select name="holder">
        <option value="">yourself</option>
        ${holders.map((token) => html`<option key=${token.id} value=${token.id}>${token.name}</option>`)}
      </select></label>
      <label>Minutes <input name="minutes" type="number" min="1" max=${MAX_RESERVATION} value="60" required /></label>
      <button class="main">Reserve</button>
    </form>`}
    ${worker.reserved_for !== null && html`<p>Reserved for <b>${worker.reserved_for}</b> until ${time(worker.reserved_until)}: the jobs of other tokens wait.</p>`}
    ${problem && html`<${Alert} problem=${problem} />`}
    ${worker.other_version && html`<p class="alert">It runs tunefarm ${worker.tunefarm_version}, which isn't the service's version${worker.desired_state === "update" ? ": it is to be updated" : ""}.</p>`}
    ${worker.shares_with.length > 0 && html`<p class="alert">It measures in turns with ${worker.shares_with.join(" and ")}, on the same hardware: stop one, or give each its own cores with <code>taskset</code>.</p>`}
    ${worker.health_error && html`<p class="alert">Can't ${does}: ${worker.health_error}</p>`}
    <dl class="pairs">
      <dt>Now</dt><dd>${now(worker)}</dd>
      <dt>${worker.role === "build" ? "Builds for" : "Device"}</dt>
      <dd>${worker.role === "build" ? worker.builds_for.join(", ") || "nothing yet" : worker.device_name ?? "not known yet"}${worker.cores && `, ${plural(worker.cores, "core")}`}</dd>
      <dt>Trials</dt><dd>${digits(worker.trials_done)}, ${digits(worker.trials_per_minute)} a minute${worker.trial_s !== null && `, ${latency(worker.trial_s)} each`}</dd>
      <dt>Failures</dt><dd>${digits(worker.failures)}${kinds.length > 0 && html` <span class="muted">(${kinds.join(", ")})</span>`}</dd>
      <dt>Noise</dt><dd>${noise === null ? "not known yet" : html`${percent(noise)} <span class="muted">spread of a trial's repeats${noise > NOISY && ", so something disturbs the device"}</span>`}</dd>
      <dt>Temperature</dt><dd>${worker.temperature_c === null ? "not measured" : `${digits(worker.temperature_c)} °C`}</dd>
      <dt>Load</dt><dd>${worker.load === null ? "–" : digits(worker.load)}${worker.memory_free_bytes !== null && `, ${bytes(worker.memory_free_bytes)} of memory free`}</dd>
      <dt>Seen</dt><dd>${ago(worker.last_seen_at)} <span class="muted">tunefarm ${worker.tunefarm_version || "?"}, TVM ${worker.tvm_version || "?"}${worker.driver && `, NVIDIA's driver ${worker.driver}`}</span></dd>
      ${worker.sandbox_gaps && html`<dt>Not contained</dt><dd>${worker.sandbox_gaps}</dd>`}
    </dl>
  </section>`;
}

// A worker's current activity.
function now(worker) {
  if (!worker.connected) return `was last seen ${ago(worker.last_seen_at)}`;
  if (worker.lease !== null) {
    const { candidates, candidates_done: done } = worker;
    return candidates === null ? "works on a lease" : `works on a lease: ${done ?? 0} of ${plural(candidates, "candidate")}`;
  }
  if (worker.desired_state === "drain") return "takes no more work";
  if (worker.desired_state === "evicted") return "is evicted";
  if (worker.desired_state === "update") return "waits for its update";
  return { probing: "is probing its device", ready: "waits for work" }[worker.state] ?? worker.state;
}

function DeviceClass({ device }) {
  const limits = machineLimits(device);
  const { profile } = device;
  const measured = (name) => (profile.derived.includes(name) ? html` <span class="muted">derived</span>` : "");
  return html`<section class="card">
    <h2>${device.name} <span class="muted">device class <code>${device.key}</code></span></h2>
    <dl class="pairs">
      <dt>Machine</dt><dd>${device.triple}, ${device.mcpu}, ${plural(device.cores, "core")}, vectors of ${device.vector_bytes} bytes</dd>
      <dt>Caches</dt><dd>${[device.l1_bytes, device.l2_bytes, device.l3_bytes].map(cacheSize).join(", ")}</dd>
      <dt>Toolchain</dt><dd>${device.toolchain}</dd>
      ${profile
        ? html`<dt>Peak</dt><dd>${scaled(limits.flops, "FLOP/s")} in float32${measured("multiply_adds")}, ${scaled(profile.hertz, "Hz")}${measured("hertz")}</dd>
            <dt>Reads</dt><dd>${limits.bytes.map(([name, rate], at) => `${at ? ", " : ""}${scaled(rate, "B/s")} from ${name}`)}${measured("memory_rate_all")}</dd>
            <dt>Threads</dt><dd>start in ${latency(profile.launch_s)}${measured("launch_s")}</dd>`
        : html`<dt>Profile</dt><dd>not measured yet</dd>`}
      <dt>Features</dt><dd><details><summary>${plural(device.features.length, "instruction set")}</summary><code>${device.features.join(" ")}</code></details></dd>
    </dl>
  </section>`;
}
