// The list of jobs, and the form that starts one.
import { useEffect, useState } from "preact/hooks";
import { call, get } from "tunefarm/api.js";
import { ago, duration, latency, time } from "tunefarm/format.js";
import { useAnswer, useJobEvents } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Alert, Answer, Gain, State, Trials } from "tunefarm/pages/parts.js";

// A browser opens six connections to a server, so only this many rows listen to events. The others poll.
const FOLLOWED = 3;
const LOOK_EVERY_S = 5;
// File extensions, which job names omit.
const MODEL_FILE = /\.(onnx|pt2|mlir|mlirbc|tflite|json|tar)$/i;

const STATES = ["queued", "importing", "tuning", "publishing", "done", "failed", "cancelled"];

// `query` is the address after the question mark: words in the model's name, and a state.
export function JobsPage({ scopes, query }) {
  const wanted = new URLSearchParams(query);
  const words = wanted.get("words") ?? "";
  const state = STATES.includes(wanted.get("state")) ? wanted.get("state") : "";
  const filter = `${words && `&words=${encodeURIComponent(words)}`}${state && `&state=${state}`}`;
  const jobs = useAnswer(`v1/jobs?limit=50${filter}`, LOOK_EVERY_S);
  const [older, setOlder] = useState([]);
  const [next, setNext] = useState(undefined);
  const more = next === undefined ? jobs.value?.next : next;
  const maySubmit = scopes.includes("submit") || scopes.includes("admin");
  const showOlder = async () => {
    const page = await get(`v1/jobs?limit=50${filter}&before=${encodeURIComponent(more)}`);
    setOlder([...older, ...page.items]);
    setNext(page.next);
  };
  return html`
    <h1>Jobs</h1>
    ${maySubmit && html`<${Submit} onStarted=${jobs.refresh} />`}
    <${Filter} words=${words} state=${state} onChange=${() => (setOlder([]), setNext(undefined))} />
    <${Answer} answer=${jobs}>
      ${({ items }) => {
        const newest = new Set(items.map((job) => job.id));
        const all = [...items, ...older.filter((job) => !newest.has(job.id))];
        const followed = new Set(all.filter((job) => job.state === "tuning").slice(0, FOLLOWED));
        if (!all.length && filter) return html`<p class="muted">No job matches.</p>`;
        if (!all.length) return html`<p class="muted">No job yet: drop a model above to start one.</p>`;
        return html`<table class="cards">
            <caption class="hidden">Jobs, newest first</caption>
            <thead>
              <tr>
                <th scope="col">Model</th><th scope="col">State</th><th scope="col">Trials</th><th scope="col">Untuned</th>
                <th scope="col">Tuned</th><th scope="col">Gain</th><th scope="col">Started</th><th scope="col"><span class="hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              ${all.map(
                (job) => html`<${Row} key=${job.id} job=${job} isFollowed=${followed.has(job)} maySubmit=${maySubmit} onChange=${jobs.refresh} />`,
              )}
            </tbody>
          </table>
          ${more && html`<p><button type="button" onClick=${showOlder}>Older jobs</button></p>`}`;
      }}
    <//>
  `;
}

// The filter is stored in the address, so that users can bookmark and share it.
function Filter({ words, state, onChange }) {
  const apply = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget.form ?? event.currentTarget);
    const asked = new URLSearchParams([...form].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
    onChange();
    location.hash = asked.size ? `#/jobs?${asked}` : "#/jobs";
  };
  return html`<form class="fields filter" role="search" onSubmit=${apply}>
    <label>Model <input name="words" type="search" value=${words} placeholder="part of its name" /></label>
    <label>State
      <select name="state" onChange=${apply}>
        <option value="">any</option>
        ${STATES.map((one) => html`<option value=${one} selected=${one === state}>${one}</option>`)}
      </select>
    </label>
    <button>Filter</button>
  </form>`;
}

function Row({ job: listed, isFollowed, maySubmit, onChange }) {
  const [seen, setSeen] = useState(null);
  const job = seen && seen.listed === listed ? seen.job : listed;
  const look = async () => {
    const now = await get(`v1/jobs/${job.id}`);
    setSeen({ listed, job: now });
    if (now.finished) onChange();
  };
  useJobEvents(isFollowed ? job : null, () => look().catch(() => onChange()));
  const left = job.seconds_left;
  return html`<tr>
    <th scope="row" data-label="Model"><a href=${`#/jobs/${encodeURIComponent(job.id)}`}>${job.model_name}</a></th>
    <td data-label="State"><${State} state=${job.state} /></td>
    <td data-label="Trials"><${Trials} job=${job} leftS=${left === null ? null : `${duration(left)} left`} /></td>
    <td data-label="Untuned">${latency(job.untuned_latency_s)}</td>
    <td data-label="Tuned">${latency(job.tuned_latency_s)}</td>
    <td data-label="Gain"><${Gain} job=${job} /></td>
    <td data-label="Started" title=${time(job.created_at)}>${ago(job.created_at)}</td>
    <td class="actions">${maySubmit && html`<${Actions} job=${job} onChange=${onChange} />`}</td>
  </tr>`;
}

// A job's buttons: cancel it while it runs, restart it afterwards.
export function Actions({ job, onChange }) {
  const [problem, setProblem] = useState(null);
  const attempt = (act) => async () => {
    setProblem(null);
    try {
      onChange(await act());
    } catch (refused) {
      setProblem(refused);
    }
  };
  const cancel = attempt(() =>
    confirm(`Cancel the job of ${job.model_name} for good?`) ? call("POST", `v1/jobs/${encodeURIComponent(job.id)}:cancel`) : job,
  );
  const again = attempt(async () => {
    if (job.infers === null) return call("POST", "v1/jobs", repeated(job));
    const { inputs } = await get(`v1/jobs/${encodeURIComponent(job.id)}/inference`);
    return call("POST", `v1/jobs/${encodeURIComponent(job.infers)}/inferences`, { inputs, target: job.target });
  });
  return html`
    ${job.finished
      ? html`<button type="button" onClick=${again} aria-label=${`Repeat ${job.model_name}`}>Repeat</button>`
      : html`<button type="button" onClick=${cancel} aria-label=${`Cancel ${job.model_name}`}>Cancel</button>`}
    ${problem && html`<${Alert} problem=${problem} />`}
  `;
}

// A job's request, for a restart.
function repeated(job) {
  const { model, shapes, target, trials, minutes, latency_s, min_gain, objective } = job;
  const { batch, seed, priority, weight, build, exact, tf32, quantize, calibration } = job;
  const goals = trials ? { trials, minutes, latency_s, min_gain, objective } : { compile_only: true, minutes };
  return { model, shapes, target, batch, seed, priority, weight, build, exact, tf32, quantize, calibration, ...goals };
}

function Submit({ onStarted }) {
  const [file, setFile] = useState(null);
  const [isOver, setOver] = useState(false);
  const [doing, setDoing] = useState("");
  const [problem, setProblem] = useState(null);
  const devices = useAnswer("v1/device-classes");
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files.length) setFile(event.dataTransfer.files[0]);
  };
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setProblem(null);
    try {
      const shapes = parseShapes(form.get("shapes"));
      setDoing(`Sending ${file.name} …`);
      const name = encodeURIComponent(file.name.replace(MODEL_FILE, "") || "model");
      const model = await call("POST", `v1/models?name=${name}`, file, { "Content-Type": "application/octet-stream" });
      const data = form.get("calibration");
      const quantize = form.get("quantize");
      let calibration = null;
      if (data.size && quantize !== "none") {
        setDoing(`Sending ${data.name} …`);
        const place = `v1/datasets?name=${encodeURIComponent(data.name.replace(/\.npz$/i, "") || "data")}`;
        calibration = (await call("POST", place, data, { "Content-Type": "application/octet-stream" })).sha256;
      }
      setDoing("Starting the job …");
      const number = (name, unit = 1) => (form.get(name) ? Number(form.get(name)) * unit : null);
      const goals = { minutes: number("minutes"), latency_s: number("latency", 1e-3), min_gain: number("gain", 1e-2) };
      if (form.get("trials")) goals.trials = number("trials");
      const request = { model: model.sha256, target: form.get("target"), shapes, batch: number("batch"), ...goals };
      const job = await call("POST", "v1/jobs", { ...request, exact: form.has("exact"), tf32: form.has("tf32"), quantize, calibration });
      setFile(null);
      onStarted(job);
    } catch (refused) {
      setProblem(refused);
    } finally {
      setDoing("");
    }
  };
  // A file dropped beside the form would otherwise replace the page.
  useEffect(() => {
    const keep = (event) => event.preventDefault();
    for (const kind of ["dragover", "drop"]) addEventListener(kind, keep);
    return () => ["dragover", "drop"].forEach((kind) => removeEventListener(kind, keep));
  }, []);
  return html`<form class="card submit" onSubmit=${submit}>
    <label class=${`drop${isOver ? " over" : ""}`} onDragOver=${(event) => (event.preventDefault(), setOver(true))} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <input type="file" accept=".onnx,.pt2,.mlir,.mlirbc,.tflite,.json,.tar" onChange=${(event) => setFile(event.target.files[0] ?? null)} />
      <span>${file ? html`<b>${file.name}</b>, ${(file.size / 1e6).toFixed(1)} MB` : html`<b>Drop a model here</b>, or choose a file: ONNX, PyTorch's .pt2, StableHLO, TFLite`}</span>
    </label>
    ${file &&
    html`<div class="fields">
      <label>Trials, at most <input name="trials" type="number" min="1" max="10000000" value="300" placeholder="no limit" /></label>
      <label>Minutes, at most <input name="minutes" type="number" min="0.1" step="any" placeholder="no limit" /></label>
      <label>Until the latency is at most, ms <input name="latency" type="number" min="0.001" step="any" placeholder="no limit" /></label>
      <label>Until a minute gains less than, % <input name="gain" type="number" min="0.001" max="99" step="any" placeholder="never" /></label>
      <label>Batch size, if dynamic <input name="batch" type="number" min="1" max="65536" placeholder="from the shapes" /></label>
      <label>Device
        <select name="target">
          <option value="native">any ready device</option>
          ${devices.value?.items.map((one) => html`<option value=${one.key}>${one.name} (${one.key.slice(0, 6)})</option>`)}
        </select>
      </label>
      <label>Shapes of dynamic inputs <input name="shapes" placeholder="input=1,3,224,224" autocomplete="off" /></label>
      <label>Quantize
        <select name="quantize">
          <option value="none">nothing</option>
          <option value="int8">to int8</option>
          <option value="int4">weights to int4</option>
        </select>
      </label>
      <label>Calibration data, .npz <input name="calibration" type="file" accept=".npz" /></label>
      <label class="check"><input name="exact" type="checkbox" /> Exact: no variants that round differently</label>
      <label class="check"><input name="tf32" type="checkbox" /> TF32: float32 is multiplied with 10 bits of fraction on GPUs</label>
      <button class="main" disabled=${Boolean(doing)}>Tune</button>
    </div>`}
    <p role="status" class="muted">${doing}</p>
    ${problem && html`<${Alert} problem=${problem} />`}
  </form>`;
}

// "a=1,3 b=4" -> { a: [1, 3], b: [4] }
function parseShapes(text) {
  const shapes = text.trim().split(/\s+/).filter(Boolean).map((one) => {
    const [name, extents] = [one.slice(0, one.lastIndexOf("=")), one.slice(one.lastIndexOf("=") + 1)];
    if (!name || !/^\d+(,\d+)*$/.test(extents)) throw new Error(`a shape is like input=1,3,224,224, not ${one}`);
    return [name, extents.split(",").map(Number)];
  });
  return Object.fromEntries(shapes);
}
