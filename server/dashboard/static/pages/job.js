// One job: its speed-up, its trials, the network's time by subgraph, and its failures.
import { useEffect, useMemo, useState } from "preact/hooks";
import { call, isReport } from "tunefarm/api.js";
import { Chart, colour, Treemap } from "tunefarm/charts.js";
import { bytes, digits, duration, latency, percent, plural, scaled, time, withUnits } from "tunefarm/format.js";
import { useAnswer, useForm, useJobEvents, useTitle } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Actions } from "tunefarm/pages/jobs.js";
import { Roofline } from "tunefarm/pages/roofline.js";
import { Alert, Answer, DeviceName, deviceName, Fact, Field, Gain, Later, Section, State, Tags, Trials } from "tunefarm/pages/parts.js";
import { improvement, network, progress, spread, subgraphs, sum } from "tunefarm/series.js";

// The number of subgraphs with their own colour. The others share one.
const NAMED = 7;
// A smaller gain in the last quarter of the trials means that the search is done.
const DONE_BELOW = 0.01;
// Why the search ended.
const ENDS = {
  trials: "all trials were spent",
  minutes: "the minutes were up",
  latency: "the estimated latency reached the goal",
  gain: "the next minute was expected to gain too little",
  exhausted: "there was nothing new to try",
};
// How often the charts of a running job are redrawn.
const CHARTS_EVERY_S = 5;

export function JobPage({ id, scopes }) {
  const path = `v1/jobs/${encodeURIComponent(id)}`;
  const job = useAnswer(path);
  const tasks = useAnswer(`${path}/tasks`);
  const trials = useAnswer(`${path}/trials`);
  const classes = useAnswer("v1/device-classes");
  useJobEvents(job.value, job.refresh);
  const isFinished = job.value?.finished ?? true;
  useEffect(() => {
    const refresh = () => (tasks.refresh(), trials.refresh());
    const timer = isFinished ? 0 : setInterval(() => document.hidden || refresh(), CHARTS_EVERY_S * 1e3);
    if (isFinished && job.value) refresh();
    return () => clearInterval(timer);
  }, [isFinished]);
  useTitle(job.value && `${job.value.model_name}, ${job.value.state}`);
  return html`<${Answer} answer=${job}>
    ${(value) => html`
      <${Head} job=${value} classes=${classes.value?.items} tasks=${tasks.value?.items} scopes=${scopes} onChange=${job.refresh} />
      <${Answer} answer=${tasks}>
        ${(found) => html`<${Answer} answer=${trials}>
          ${(measured) => html`<${Details} job=${value} classes=${classes.value} tasks=${found.items} trials=${measured} />`}
        <//>`}
      <//>
    `}
  <//>`;
}

function Head({ job, classes, tasks, scopes, onChange }) {
  const [again, setAgain] = useState(null);
  const left = job.seconds_left;
  const peer = job.onnxruntime;
  const now = job.finished || !tasks ? null : network(tasks);
  const takes = job.footprint;
  const maySubmit = !isReport && (scopes.includes("submit") || scopes.includes("admin"));
  const took = job.started_at && (job.finished_at ?? Date.now() / 1e3) - job.started_at;
  const changed = (answer) => (answer.id === job.id ? onChange() : setAgain(answer));
  return html`
    <div class="title">
      <h1>${job.model_name} <${State} state=${job.state} /></h1>
      <div class="actions">
        ${maySubmit && html`<${Actions} job=${job} onChange=${changed} />`}
        ${!isReport && job.state === "done" && html`<a class="button" href=${`v1/jobs/${encodeURIComponent(job.id)}/${job.infers === null ? "artifact" : "outputs"}`} download>Download the ${job.infers === null ? "model" : "outputs"}</a>`}
        ${!isReport && html`<a class="button" href=${`v1/jobs/${encodeURIComponent(job.id)}/report`} download>Report</a>`}
      </div>
    </div>
    ${again && html`<p role="status">Started again: <a href=${`#/jobs/${encodeURIComponent(again.id)}`}>the new job</a>.</p>`}
    ${job.message && html`<p>${withUnits(job.message)}</p>`}
    ${job.end_reason && html`<p>The search ended: ${ENDS[job.end_reason]}.</p>`}
    ${job.members.length > 1 && html`<p>Shares its trials with ${job.members.filter((id) => id !== job.id).map((id) => html` <a href=${`#/jobs/${encodeURIComponent(id)}`}>${id}</a>`)}.</p>`}
    ${job.error && html`<${Alert} problem=${{ message: job.error }} />`}
    <dl class="facts">
      ${peer?.ratio && html`<${Fact} name=${`times as fast as ONNX Runtime ${peer.version}`}><b class=${peer.ratio > 1 ? "gain" : ""}>${peer.ratio.toPrecision(3)}×</b><//>`}
      ${now && peer?.latency_s && !peer.ratio && html`<${Fact} name="times as fast as ONNX Runtime, estimated"><b class=${peer.latency_s > now ? "gain" : ""}>≈ ${(peer.latency_s / now).toPrecision(3)}×</b><//>`}
      ${now && html`<${Fact} name="the network, estimated">${latency(now)}<//>`}
      <${Fact} name="tuned">${latency(job.tuned_latency_s)}<//>
      ${peer?.latency_s && html`<${Fact} name="ONNX Runtime">${latency(peer.latency_s)}<//>`}
      <${Fact} name="untuned">${latency(job.untuned_latency_s)}<//>
      <${Fact} name="times as fast as untuned"><${Gain} job=${job} /><//>
      ${takes && html`<${Fact} name="memory of the model">${bytes(takes.memory_bytes)}<//>
        <${Fact} name="to load it">${latency(takes.load_s)}<//>`}
      ${takes && takes.energy_j !== null && html`<${Fact} name="energy of a call">${scaled(takes.energy_j, "J")}<//>`}
      <${Fact} name=${left === null ? "trials" : `trials, ${duration(left)} left`}><${Trials} job=${job} /><//>
      <${Fact} name=${`since ${time(job.created_at)}`}>${job.started_at ? duration(took) : "not started"}<//>
    </dl>
    ${peer?.note && html`<p class="muted">Not compared with ONNX Runtime: ${peer.note}.</p>`}
    <${Notes} job=${job} mayEdit=${maySubmit} onChange=${onChange} />
    <p class="muted">Job <code>${job.id}</code> · target ${deviceName(classes, job.target)}
      ${job.minutes !== null && ` · at most ${digits(job.minutes)} minutes`}
      ${job.latency_s !== null && ` · until it takes ${latency(job.latency_s)}`}
      ${job.min_gain !== null && ` · until a minute gains less than ${digits(100 * job.min_gain)}%`} · seed ${job.seed}
      ${Object.entries(job.shapes).map(([name, shape]) => html` · <code>${name}=${shape.join(",")}</code>`)}</p>
  `;
}

// The job's tags and notes, and a form to edit them.
function Notes({ job, mayEdit, onChange }) {
  const { isOpen, setOpen, form: formRef, button, onKeyDown } = useForm();
  const [problem, setProblem] = useState(null);
  const save = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setProblem(null);
    try {
      const tags = form.get("tags").split(/[\s,]+/).filter(Boolean);
      await call("PATCH", `v1/jobs/${encodeURIComponent(job.id)}`, { tags, notes: form.get("notes").trim() });
      setOpen(false);
      onChange();
    } catch (refused) {
      setProblem(refused);
    }
  };
  if (isOpen) {
    return html`<form class="card fields" ref=${formRef} onSubmit=${save} onKeyDown=${onKeyDown}>
      <label>Tags, separated by spaces <${Field} name="tags" value=${job.tags.join(" ")} /></label>
      <label class="long">Notes <textarea name="notes" rows="3" maxlength="4000" defaultValue=${job.notes}></textarea></label>
      <button class="main">Save</button>
      <button type="button" onClick=${() => setOpen(false)}>Don't save</button>
      ${problem && html`<${Alert} problem=${problem} />`}
    </form>`;
  }
  if (!mayEdit && !job.tags.length && !job.notes) return null;
  return html`<p class="notes">${job.notes}<${Tags} job=${job} />${mayEdit && html` <button type="button" class="small" ref=${button} onClick=${() => setOpen(true)}>Edit tags and notes</button>`}</p>`;
}

function Details({ job, classes, tasks, trials }) {
  const parts = useMemo(() => subgraphs(tasks, trials), [tasks, trials]);
  const found = useMemo(() => progress(tasks, trials), [tasks, trials]);
  return html`
    <${Glance} job=${job} classes=${classes} parts=${parts} steps=${found.steps} trials=${trials} />
    <${WholeModel} job=${job} />
    ${job.quantize !== "none" && ["tuning", "publishing", "done"].includes(job.state) && html`<${Quantized} job=${job} />`}
    <${Progress} job=${job} steps=${found.steps} />
    <${Later}>${() => html`<${Allocation} parts=${parts} snapshots=${found.snapshots} />`}<//>
    <${Later}>${() => html`<${Maps} job=${job} parts=${parts} />`}<//>
    <${Later}>${() => html`<${Roofline} job=${job} classes=${classes} parts=${parts} />`}<//>
    <${Later}>${() => html`<${Table} job=${job} parts=${parts} />`}<//>
    <${Later}>${() => html`<${Failures} trials=${trials} />`}<//>
  `;
}

// Short answers to common questions about a job.
function Glance({ job, classes, parts, steps, trials }) {
  const found = improvement(steps, trials.task.length);
  return html`<section class="card">
    <h2>At a glance</h2>
    <dl class="pairs">
      ${!job.finished && html`<dt>How fast is it now?</dt><dd>${fastNow(steps, job.onnxruntime)}</dd>`}
      <dt>Done improving?</dt><dd>${improving(job, found)}</dd>
      <dt>Where does the time go?</dt><dd>${timeGoes(parts)}</dd>
      <dt>Can I trust it?</dt><dd><${Trust} job=${job} /></dd>
      <dt>Measured on</dt><dd>${job.device_class ? html`<${DeviceName} classes=${classes?.items} job=${job} /> <span class="muted">device class <code>${job.device_class}</code></span>` : "no device yet"}</dd>
      ${!isReport && job.state === "done" && html`<dt>How do I get it?</dt><dd>Download the model, unpack it, and run it: <code>pip install tunefarm-runtime</code>, <code>tunefarm_runtime.load("FOLDER")</code>.</dd>`}
    </dl>
  </section>`;
}

function fastNow(steps, peer) {
  const known = steps.network_s.filter((secs) => secs !== null);
  if (!known.length) return "not every subgraph has been measured yet";
  const now = known.at(-1);
  const ratio = peer?.latency_s ? `, about ${(peer.latency_s / now).toPrecision(3)}× as fast as ONNX Runtime` : "";
  return `about ${latency(now)} by an estimate, ${(known[0] / now).toPrecision(3)}× as fast as with the first programs${ratio}`;
}

function improving(job, found) {
  if (found === null) return job.finished ? "there were too few trials to tell" : "too early to tell";
  const much = found.gain < 1 ? `${(100 * found.gain).toFixed(1)}% faster` : `${(1 + found.gain).toPrecision(3)}× as fast, perhaps because an earlier measurement was disturbed`;
  const lately = `in the last quarter of ${plural(found.trials, "trial")} it became ${much}`;
  if (found.gain < DONE_BELOW) return `Yes: ${lately}.`;
  return `${job.finished ? "Not yet, more trials may help" : "No"}: ${lately}, the last time ${found.since ? `${plural(found.since, "trial")} ago` : "with the last trial"}.`;
}

function timeGoes(parts) {
  const total = sum(parts.map((part) => part.network_s ?? 0));
  const measured = parts.filter((part) => part.network_s !== null).length;
  if (!total) return "nothing has been measured yet";
  if (parts.some((part) => part.own.covered && part.network_s === null)) {
    return `not known yet: ${measured} of ${plural(parts.length, "subgraph")} ${measured === 1 ? "has" : "have"} been measured`;
  }
  const shares = parts.map((part) => (part.network_s ?? 0) / total);
  const costliest = parts.slice(0, 2).map((part, number) => `${percent(shares[number])} in ${part.label}`);
  let [most, reached] = [0, 0];
  while (reached < 0.8) reached += shares[most++];
  return `${costliest.join(", ")}; ${percent(reached)} in ${most} of ${plural(parts.length, "subgraph")}`;
}

// Whether the device was disturbed, how sure the latency is, and whether its repeats overlap with ONNX Runtime's.
function Trust({ job }) {
  const tuned = spread(job.tuned_s);
  if (!tuned) return job.finished ? "the whole model was not timed" : "the whole model is timed at the end; until then its latency is an estimate";
  const peer = spread(job.onnxruntime?.run_s ?? []);
  const apart = peer && (tuned.high < peer.low || peer.high < tuned.low);
  const [low, high] = job.tuned_interval_s ?? [];
  const sure = low !== undefined && `${latency(low)} to ${latency(high)} with 95% confidence; `;
  return html`<span class=${`state ${job.noisy ? "failed" : "done"}`}>${job.noisy ? "noisy" : "steady"}</span> ${sure}${plural(job.tuned_s.length, "repeat")} between ${latency(tuned.low)} and ${latency(tuned.high)}${
    peer && (apart ? "; none overlaps with ONNX Runtime's" : "; some overlap with ONNX Runtime's")}.${job.noisy && " Something disturbed the device: compare again while nothing else runs on it."}`;
}

// The whole model's timings on the device (ONNX Runtime, untuned, published before, tuned) on one scale.
function WholeModel({ job }) {
  const peer = job.onnxruntime?.run_s ?? [];
  const all = [["ONNX Runtime", peer], ["untuned", job.untuned_s], ["published before", job.published_before_s], ["tuned", job.tuned_s]];
  const models = all.filter(([, secs]) => secs.length);
  if (!models.length) return null;
  const slowest = Math.max(...models.flatMap(([, secs]) => secs));
  return html`<${Section} title="The whole model on the device">
    <dl class="bars">
      ${models.map(([name, secs]) => {
        const { median, low, high } = spread(secs);
        return html`<dt>${name}</dt>
          <dd><i class=${name} style=${{ width: `${(100 * median) / slowest}%` }}></i>
            <span>${latency(median)}<span class="muted"> · ${latency(low)} to ${latency(high)}, ${plural(secs.length, "repeat")}</span></span></dd>`;
      })}
    </dl>
  <//>`;
}

// The signal-to-noise ratio of each layer of a quantized model, in decibels.
function Quantized({ job }) {
  const found = useAnswer(`v1/jobs/${encodeURIComponent(job.id)}/quantization`);
  const ratio = (db) => (db === null ? "exact" : `${db.toFixed(1)} dB`);
  return html`<${Section} title="Accuracy of the quantized model">
    <${Answer} answer=${found}>
      ${(value) => html`<p>${value.text}.</p>
        <table class="cards">
          <caption class="hidden">Signal-to-noise ratio of each layer</caption>
          <thead>
            <tr><th scope="col">Layer</th><th scope="col">Operator</th><th scope="col">Computes in</th><th scope="col" class="number">By itself</th><th scope="col" class="number">In the model</th></tr>
          </thead>
          <tbody>
            ${value.layers.map(
              (layer) => html`<tr key=${layer.name}>
                <th scope="row" data-label="Layer">${layer.name}</th>
                <td data-label="Operator">${layer.operator}</td>
                <td data-label="Computes in">${layer.kept ? "float32" : value.quantize}</td>
                <td class="number" data-label="By itself">${ratio(layer.own_db)}</td>
                <td class="number" data-label="In the model">${ratio(layer.total_db)}</td>
              </tr>`,
            )}
          </tbody>
        </table>`}
    <//>
  <//>`;
}

function Progress({ job, steps }) {
  const [by, setBy] = useState("trials");
  const x = useMemo(
    () =>
      by === "trials"
        ? { label: "trials", format: digits, values: steps.trial }
        : { label: "time since the start", format: duration, values: steps.at_s },
    [steps, by],
  );
  const { untuned_latency_s: untuned, tuned_latency_s: tuned } = job;
  const peer = job.onnxruntime?.latency_s ?? null;
  const before = spread(job.published_before_s)?.median ?? null;
  const series = useMemo(
    () => [
      { label: "the network, estimated", kind: "step", values: steps.network_s },
      ...[["ONNX Runtime, measured", peer], ["untuned, measured", untuned], ["published before, measured", before], ["tuned, measured", tuned]]
        .filter(([, secs]) => secs !== null && steps.network_s.length)
        .map(([label, secs]) => ({ label, kind: "line", values: steps.network_s.map(() => secs) })),
    ],
    [steps, peer, untuned, before, tuned],
  );
  return html`<section class="card">
    <fieldset class="choice">
      <legend class="hidden">Show the best latency against</legend>
      ${["trials", "time"].map(
        (one) => html`<label><input type="radio" name="by" checked=${by === one} onChange=${() => setBy(one)} /> ${one}</label>`,
      )}
    </fieldset>
    <${Chart} title="Best latency" note="Estimated as the sum of all subgraphs' best latencies, once each has been measured. Straight lines are measured latencies of the whole model."
      x=${x} y=${{ label: "latency", format: latency, log: true }} series=${series} />
  </section>`;
}

// The trials of each subgraph over time, and its latency.
function Allocation({ parts, snapshots }) {
  const groups = useMemo(() => grouped(parts), [parts]);
  const x = useMemo(() => ({ label: "time since the start", format: duration, values: snapshots.map((one) => one.at_s) }), [snapshots]);
  const areas = (key) =>
    groups.map(({ label, workloads, colour }) => ({
      label,
      colour,
      kind: "area",
      values: snapshots.map((one) => sum(workloads.map((workload) => one[key].get(workload) ?? 0))),
    }));
  const trials = useMemo(() => areas("spent"), [groups, snapshots]);
  const times = useMemo(() => areas("network"), [groups, snapshots]);
  return html`<${Section} title="Trials and time of each subgraph" className="card two" isChart>
    <${Chart} title="Trials of each subgraph" note="How the allocator spends the budget." x=${x} y=${{ label: "trials", format: digits }} series=${trials} />
    <${Chart} title="Time of each subgraph" note="The latency of its best program times its number of occurrences." x=${x} y=${{ label: "time in one run", format: latency }} series=${times} />
  <//>`;
}

// The costliest subgraphs each get a colour, the others share one.
function grouped(parts) {
  const named = parts.slice(0, NAMED).map((part, number) => ({ label: part.label, workloads: [part.workload], colour: colour(number) }));
  const rest = parts.slice(NAMED);
  if (!rest.length) return named;
  return [...named, { label: `${rest.length} others`, workloads: rest.map((part) => part.workload), colour: colour(NAMED) }];
}

function Maps({ job, parts }) {
  const seconds = (part, key) => (part[key] === null ? 0 : part[key] * part.weight);
  // A subgraph that this job hasn't measured has no first program, so neither map shows it.
  const both = parts.filter((part) => part.first_s !== null && part.best_s !== null);
  const missing = parts.filter((part) => part.own.covered).length - both.length;
  const items = (key) =>
    both.map((part) => ({
      key: part.workload,
      label: part.label,
      detail: latency(seconds(part, key)),
      value: seconds(part, key),
      colour: colour(parts.indexOf(part)),
      href: taskHref(job, part.workload),
    }));
  if (!both.length) return html`<${Section} title="Where the network's time goes"><p class="muted">This job has measured nothing yet.</p><//>`;
  const [before, after] = [items("first_s"), items("best_s")];
  const whole = Math.max(...[before, after].map((map) => sum(map.map((item) => item.value))));
  return html`<${Section} title="Where the network's time goes">
    <p class="muted">Areas are seconds of one run, on one scale.${missing > 0 && ` ${plural(missing, "subgraph")} that this job hasn't measured ${missing === 1 ? "is" : "are"} left out of both.`}</p>
    <${Treemap} title="With each subgraph's first measured program" note=${latency(sum(before.map((item) => item.value)))} items=${before} whole=${whole} />
    <${Treemap} title="With the best known program" note=${latency(sum(after.map((item) => item.value)))} items=${after} whole=${whole} />
  <//>`;
}

function taskHref(job, workload) {
  return `#/jobs/${encodeURIComponent(job.id)}/tasks/${encodeURIComponent(workload)}`;
}

function Table({ job, parts }) {
  const total = sum(parts.map((part) => part.network_s ?? 0));
  return html`<${Section} title="Subgraphs">
    <table class="cards dense">
      <caption class="hidden">Subgraphs, the costliest first</caption>
      <thead>
        <tr><th scope="col">Subgraph</th><th scope="col" class="number">Times</th><th scope="col" class="number">Trials</th><th scope="col" class="number">First</th><th scope="col" class="number">Best</th><th scope="col" class="number">Share</th><th scope="col">Verdict</th></tr>
      </thead>
      <tbody>
        ${parts.map(
          (part, number) => html`<tr key=${part.workload}>
            <th scope="row" data-label="Subgraph"><i class="dot" style=${{ background: colour(number) }}></i><a href=${taskHref(job, part.workload)}>${part.label}</a>
              ${part.own.layer && part.weight > 1 && html` <span class="muted">and ${part.weight - 1} more</span>`}
              ${part.best?.variant && html` <span class="muted">by ${part.best.variant}</span>`}
              ${part.own.layer && html`<br /><span class="muted operators">${part.own.name}</span>`}</th>
            <td class="number" data-label="Times">${part.weight}</td>
            <td class="number" data-label="Trials">${part.trials}</td>
            <td class="number" data-label="First">${latency(part.first_s)}</td>
            <td class="number" data-label="Best">${latency(part.best_s)}</td>
            <td class="number" data-label="Share">${percent(part.network_s === null ? null : part.network_s / total)}</td>
            <td data-label="Verdict">${part.own.covered ? part.best?.verdict || "–" : html`<span class="muted">not tuned: ${part.own.reason}</span>`}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  <//>`;
}

function Failures({ trials }) {
  if (!trials.failures.length) return null;
  const kinds = Map.groupBy(trials.failures, (one) => one.outcome);
  return html`<${Section} title="Failures">
    ${[...kinds].map(
      ([outcome, alike]) => html`<details>
        <summary>${outcome.replaceAll("_", " ")}: ${plural(sum(alike.map((one) => one.trials)), "trial")}</summary>
        ${alike.map((one) => html`<p>${plural(one.trials, "time")}:</p><pre tabindex="0">${one.message || "no message"}</pre>`)}
      </details>`,
    )}
  <//>`;
}
