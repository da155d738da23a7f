// The list of jobs, and the form that starts one.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, get } from "tunefarm/api.js";
import { ago, duration, latency, time } from "tunefarm/format.js";
import { useAnswer, useJobEvents } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { openShapes, Outline, useOutline } from "tunefarm/pages/outline.js";
import { Alert, Answer, DeviceName, deviceName, Field, Gain, MAX_TRIALS, Ratio, ratioOf, State, Tags, Trials } from "tunefarm/pages/parts.js";

// A browser opens six connections to a server, so only this many rows listen to events. The others poll.
const FOLLOWED = 3;
const LOOK_EVERY_S = 5;
// File extensions, which job names omit.
const MODEL_FILE = /\.(onnx|pt2|mlir|mlirbc|tflite|json|tar)$/i;
const DATA_FILE = /\.npz$/i;

const STATES = ["queued", "importing", "tuning", "publishing", "done", "failed", "cancelled"];

// The orders of the list besides newest first: a title, and a job's number or text to sort by.
const ORDERS = {
  model: { title: "model", by: (job) => job.model_name.toLowerCase() },
  device: { title: "device", by: (job, classes) => deviceName(classes, job.device_class ?? job.target).toLowerCase() },
  state: { title: "state", by: (job) => STATES.indexOf(job.state) },
  latency: { title: "latency", by: (job) => job.tuned_latency_s ?? Infinity },
  ratio: { title: "gain over ONNX Runtime", by: (job) => -(ratioOf(job) ?? 0) },
};

// `query` is the address after the question mark: the list's filter and order.
export function JobsPage({ scopes, query }) {
  const wanted = new URLSearchParams(query);
  const chosen = {
    words: wanted.get("words") ?? "",
    state: STATES.includes(wanted.get("state")) ? wanted.get("state") : "",
    device_class: wanted.get("device_class") ?? "",
    tag: wanted.get("tag") ?? "",
  };
  const sort = ORDERS[wanted.get("sort")] ? wanted.get("sort") : "";
  const filter = Object.entries(chosen).filter(([, value]) => value).map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
  // Only the loaded jobs are sorted, so load more of them.
  const list = `v1/jobs?limit=${sort ? 200 : 50}${filter}`;
  const jobs = useAnswer(list, LOOK_EVERY_S);
  const classes = useAnswer("v1/device-classes");
  const repeat = wanted.get("repeat");
  const again = useAnswer(repeat && `v1/jobs/${encodeURIComponent(repeat)}`);
  const [older, setOlder] = useState([]);
  const [next, setNext] = useState(undefined);
  const [compared, setCompared] = useState([]);
  const more = next === undefined ? jobs.value?.next : next;
  const maySubmit = scopes.includes("submit") || scopes.includes("admin");
  const showOlder = async () => {
    const page = await get(`${list}&before=${encodeURIComponent(more)}`);
    setOlder([...older, ...page.items]);
    setNext(page.next);
  };
  const toggle = (id) => setCompared(compared.includes(id) ? compared.filter((one) => one !== id) : [...compared, id]);
  return html`
    <h1>Jobs</h1>
    ${maySubmit && !(repeat && !again.value) && html`<${Submit} key=${repeat} classes=${classes.value?.items ?? []} again=${again.value ?? null} onStarted=${jobs.refresh} />`}
    <${Filter} chosen=${chosen} sort=${sort} classes=${classes.value?.items ?? []} onChange=${() => (setOlder([]), setNext(undefined))} />
    <${Answer} answer=${jobs}>
      ${({ items }) => {
        const newest = new Set(items.map((job) => job.id));
        const all = [...items, ...older.filter((job) => !newest.has(job.id))];
        const followed = new Set(all.filter((job) => job.state === "tuning").slice(0, FOLLOWED));
        const by = (job) => ORDERS[sort].by(job, classes.value?.items);
        if (sort) all.sort((a, b) => compare(by(a), by(b)));
        if (!all.length && filter) return html`<p class="muted">No job matches.</p>`;
        if (!all.length) return html`<p class="muted">No job yet: drop a model above to start one.</p>`;
        return html`
          <p class="compare" role="status">${compared.length > 1
            ? html`<a class="button" href=${`#/compare?jobs=${compared.map(encodeURIComponent).join(",")}`}>Compare ${compared.length} jobs</a>`
            : html`<span class="muted">Check two or more jobs to compare them.</span>`}</p>
          <table class="cards">
            <caption class="hidden">Jobs, ${sort ? `by ${ORDERS[sort].title}` : "newest first"}</caption>
            <thead>
              <tr>
                <th scope="col"><span class="hidden">Compare</span></th><th scope="col">Model</th><th scope="col">Device</th><th scope="col">State</th>
                <th scope="col">Trials</th><th scope="col" class="number">Tuned</th><th scope="col" class="number">vs. ONNX Runtime</th><th scope="col" class="number">vs. untuned</th>
                <th scope="col">Started</th><th scope="col"><span class="hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              ${all.map(
                (job) => html`<${Row} key=${job.id} job=${job} classes=${classes.value?.items} isFollowed=${followed.has(job)} maySubmit=${maySubmit}
                  isCompared=${compared.includes(job.id)} onCompare=${() => toggle(job.id)} onChange=${jobs.refresh} />`,
              )}
            </tbody>
          </table>
          ${sort && more && html`<p class="muted">Only the newest ${all.length} jobs are sorted.</p>`}
          ${more && html`<p><button type="button" onClick=${showOlder}>Older jobs</button></p>`}`;
      }}
    <//>
  `;
}

function compare(a, b) {
  if (a === b) return 0;
  return a < b ? -1 : 1;
}

// The filter is stored in the address, so that users can bookmark and share it.
function Filter({ chosen, sort, classes, onChange }) {
  const apply = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget.form ?? event.currentTarget);
    const asked = new URLSearchParams([...form].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
    onChange();
    location.hash = asked.size ? `#/jobs?${asked}` : "#/jobs";
  };
  const option = (value, title, current) => html`<option value=${value} selected=${value === current}>${title}</option>`;
  return html`<form class="fields filter" role="search" onSubmit=${apply}>
    <label>Search <${Field} name="words" type="search" value=${chosen.words} placeholder="model, tag or note" /></label>
    <label>State
      <select name="state" onChange=${apply}>
        ${option("", "any", chosen.state)}
        ${STATES.map((one) => option(one, one, chosen.state))}
      </select>
    </label>
    <label>Device
      <select name="device_class" onChange=${apply}>
        ${option("", "any", chosen.device_class)}
        ${classes.map(({ key }) => option(key, deviceName(classes, key), chosen.device_class))}
      </select>
    </label>
    <label>Tag <${Field} name="tag" value=${chosen.tag} size="10" pattern="[0-9A-Za-z][0-9A-Za-z._:\\/\\-]*" maxlength="50" /></label>
    <label>Sort by
      <select name="sort" onChange=${apply}>
        ${option("", "newest first", sort)}
        ${Object.entries(ORDERS).map(([name, { title }]) => option(name, title, sort))}
      </select>
    </label>
    <button>Filter</button>
  </form>`;
}

function Row({ job: listed, classes, isFollowed, maySubmit, isCompared, onCompare, onChange }) {
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
    <td data-label="Compare"><input type="checkbox" checked=${isCompared} onChange=${onCompare} aria-label=${`Compare ${job.model_name}, ${job.id}`} /></td>
    <th scope="row" data-label="Model"><a href=${`#/jobs/${encodeURIComponent(job.id)}`}>${job.model_name}</a><${Tags} job=${job} /></th>
    <td data-label="Device"><${DeviceName} classes=${classes} job=${job} /></td>
    <td data-label="State"><${State} state=${job.state} /></td>
    <td data-label="Trials"><${Trials} job=${job} leftS=${left === null ? null : `${duration(left)} left`} /></td>
    <td class="number" data-label="Tuned">${latency(job.tuned_latency_s)}</td>
    <td class="number" data-label="vs. ONNX Runtime"><${Ratio} job=${job} /></td>
    <td class="number" data-label="vs. untuned"><${Gain} job=${job} /></td>
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
      ? html`<button type="button" onClick=${again} aria-label=${`Repeat ${job.model_name}`}>Repeat</button>
          <a class="button" href=${`#/jobs?repeat=${encodeURIComponent(job.id)}`} aria-label=${`Repeat ${job.model_name} with changes`}>Change</a>`
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

// Presets for the goals of a job, with the numbers of the fields below.
const GOALS = {
  "A first look: 5 minutes": { minutes: 5 },
  "A good result: 300 trials": { trials: 300 },
  "As fast as can be: until a minute gains less than 0.1%": { gain: 0.1 },
};
const [, DEFAULT_GOAL] = Object.values(GOALS);

// `again` is a finished job to repeat, whose model and options fill the form; null for a new file.
function Submit({ classes, again, onStarted }) {
  const [file, setFile] = useState(null);
  const [isOver, setOver] = useState(false);
  const [doing, setDoing] = useState("");
  const [problem, setProblem] = useState(null);
  const [goals, setGoals] = useState(again ? goalsOf(again) : DEFAULT_GOAL);
  // The digest of each file that was uploaded, or is being uploaded.
  const stored = useRef(new Map());
  const isOpen = file || again;
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files.length) choose(event.dataTransfer.files[0]);
  };
  const upload = async (kind, data, ending) => {
    setDoing(`Sending ${data.name} …`);
    const name = encodeURIComponent(data.name.replace(ending, "") || "data");
    const stored = await call("POST", `v1/${kind}?name=${name}`, data, { "Content-Type": "application/octet-stream" });
    return stored.sha256;
  };
  const store = (model) => {
    if (!stored.current.has(model)) {
      const sent = upload("models", model, MODEL_FILE).finally(() => setDoing(""));
      sent.catch(() => stored.current.delete(model));
      stored.current.set(model, sent);
    }
    return stored.current.get(model);
  };
  const outline = useOutline(file, store, setProblem);
  const choose = (chosen) => (setProblem(null), setFile(chosen));
  const submit = async (event) => {
    event.preventDefault();
    if (doing) return;
    const form = new FormData(event.target);
    setProblem(null);
    try {
      const shapes = parseShapes(form.get("shapes"));
      const targets = form.getAll("target");
      if (!targets.length) throw new Error("choose a device");
      const model = file ? await store(file) : again.model;
      const data = form.get("calibration");
      const quantize = form.get("quantize");
      let calibration = null;
      if (quantize !== "none") calibration = data.size ? await upload("datasets", data, DATA_FILE) : (again?.calibration ?? null);
      setDoing("Starting …");
      const number = (name, unit = 1) => (form.get(name) ? Number(form.get(name)) * unit : null);
      const wanted = { minutes: number("minutes"), latency_s: number("latency", 1e-3), min_gain: number("gain", 1e-2) };
      if (form.get("trials")) wanted.trials = number("trials");
      const options = { exact: form.has("exact"), tf32: form.has("tf32"), quantize, calibration };
      for (const target of targets) await call("POST", "v1/jobs", { model, shapes, batch: number("batch"), target, ...options, ...wanted });
      setFile(null);
      if (again) location.hash = "#/jobs";
      onStarted();
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
  const goal = (name, label, attributes) => html`<label>${label}
    <input name=${name} type="number" value=${goals[name] ?? ""} onInput=${(event) => setGoals({ ...goals, [name]: event.target.value })} ...${attributes} /></label>`;
  return html`<form class="card submit" onSubmit=${submit}>
    ${again && !file && html`<p>Tune <b>${again.model_name}</b> again with changes, or choose another file. <a href="#/jobs">Cancel</a></p>`}
    <label class=${`drop${isOver ? " over" : ""}`} onDragOver=${(event) => (event.preventDefault(), setOver(true))} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <input type="file" accept=".onnx,.pt2,.mlir,.mlirbc,.tflite,.json,.tar" onChange=${(event) => choose(event.target.files[0] ?? null)} />
      <span>${file ? html`<b>${file.name}</b>, ${(file.size / 1e6).toFixed(1)} MB` : html`<b>Drop a model here</b>, or choose a file: ONNX, PyTorch's .pt2, StableHLO, TFLite`}</span>
    </label>
    <${Outline} outline=${outline} />
    ${isOpen &&
    html`<p class="goals">${Object.entries(GOALS).map(([words, numbers]) => html`<button type="button" aria-pressed=${goals === numbers} onClick=${() => setGoals(numbers)}>${words}</button>`)}</p>
    <div class="fields">
      ${goal("trials", "Trials, at most", { min: "1", max: "10000000", placeholder: "no limit" })}
      ${goal("minutes", "Minutes, at most", { min: "0.1", step: "any", placeholder: "no limit" })}
      ${goal("latency", "Until the latency is at most, ms", { min: "0.001", step: "any", placeholder: "no limit" })}
      ${goal("gain", "Until a minute gains less than, %", { min: "0.001", max: "99", step: "any", placeholder: "never" })}
      <label>Batch size, if dynamic <${Field} name="batch" type="number" min="1" max="65536" value=${again?.batch ?? ""} placeholder="from the shapes" /></label>
      <label>Shapes of dynamic inputs <${Field} name="shapes" placeholder=${openShapes(outline) || "input=1,3,224,224"} autocomplete="off" value=${again ? shapesText(again.shapes) : ""} /></label>
      <fieldset class="scopes devices"><legend>Devices, a job for each</legend>
        ${[["native", "any ready device"], ...classes.map(({ key }) => [key, deviceName(classes, key)])].map(
          ([key, name]) => html`<label><input type="checkbox" name="target" value=${key} defaultChecked=${key === (again?.target ?? "native")} /> ${name}</label>`,
        )}
      </fieldset>
      <label>Quantize
        <select name="quantize">
          ${[["none", "nothing"], ["int8", "to int8"], ["int4", "weights to int4"]].map(
            ([value, title]) => html`<option value=${value} selected=${value === (again?.quantize ?? "none")}>${title}</option>`,
          )}
        </select>
      </label>
      <label>Calibration data, .npz <input name="calibration" type="file" accept=".npz" /></label>
      <label class="check"><input name="exact" type="checkbox" defaultChecked=${again?.exact} /> Exact: no variants that round differently</label>
      <label class="check"><input name="tf32" type="checkbox" defaultChecked=${again?.tf32} /> TF32: float32 is multiplied with 10 bits of fraction on GPUs</label>
      <button class="main" aria-disabled=${Boolean(doing)}>Tune</button>
    </div>`}
    <p role="status" class="muted">${doing}</p>
    ${problem && html`<${Alert} problem=${problem} />`}
  </form>`;
}

// A job's goals as the numbers of the form's fields. MAX_TRIALS means no limit.
function goalsOf(job) {
  const { trials, minutes, latency_s, min_gain } = job;
  return {
    trials: trials && trials < MAX_TRIALS ? trials : null,
    minutes,
    latency: latency_s === null ? null : latency_s * 1e3,
    gain: min_gain === null ? null : min_gain * 100,
  };
}

// { a: [1, 3], b: [4] } -> "a=1,3 b=4"
function shapesText(shapes) {
  return Object.entries(shapes).map(([name, extents]) => `${name}=${extents.join(",")}`).join(" ");
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
