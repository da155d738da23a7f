// One subgraph of a job: its best program beside the unscheduled one with a diff, and the cost model's predictions.
import { useMemo } from "preact/hooks";
import { Chart } from "tunefarm/charts.js";
import { ago, bytes, digits, latency, scaled, speed } from "tunefarm/format.js";
import { useAnswer, useTitle } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Answer, Fact, Hash } from "tunefarm/pages/parts.js";
import { Roofline } from "tunefarm/pages/roofline.js";
import { baseWorkload, marked, rankCorrelation, subgraphs } from "tunefarm/series.js";

// A line of TVMScript that begins loops.
const LOOP = /^\s*for .*:$/;

export function SubgraphPage({ id, workload }) {
  const path = `v1/jobs/${encodeURIComponent(id)}`;
  const job = useAnswer(path);
  const tasks = useAnswer(`${path}/tasks`);
  const classes = useAnswer("v1/device-classes");
  const found = useAnswer(`${path}/tasks/${encodeURIComponent(workload)}`);
  useTitle(found.value && job.value && `${found.value.task.layer || found.value.task.name} of ${job.value.model_name}`);
  return html`<${Answer} answer=${found}>
    ${({ task, tvmscript, programs, predictions }) => html`
      <p class="muted"><a href=${`#/jobs/${encodeURIComponent(id)}`}>${job.value?.model_name ?? "The job"}</a> / subgraph</p>
      <h1>${task.layer || task.name}${task.variant && html` <span class="muted">by ${task.variant}</span>`}</h1>
      ${task.layer && html`<p>${task.name}</p>`}
      ${task.signature && html`<p><code>${task.signature}</code></p>`}
      <p class="muted">Workload <${Hash} workload=${task.workload} />: <code>tunefarm show</code> and <code>tunefarm best</code> take it.</p>
      ${task.verdict && html`<p><b>${task.verdict}</b></p>`}
      ${!task.covered && html`<p>The search doesn't tune it: ${task.reason}.</p>`}
      <dl class="facts">
        <${Fact} name="best program">${latency(task.best_s)}<//>
        <${Fact} name="occurrences in the model">${task.weight}<//>
        <${Fact} name="trials of this job">${digits(task.trials)}<//>
        <${Fact} name="operations">${task.flops ? scaled(task.flops, "FLOP") : "–"}<//>
        <${Fact} name="operands">${task.num_bytes ? bytes(task.num_bytes) : "–"}<//>
        <${Fact} name="speed">${task.best_s ? speed(task.flops, task.best_s) : "–"}<//>
      </dl>
      <${Variants} id=${id} task=${task} tasks=${tasks.value?.items ?? []} />
      <${Programs} tvmscript=${tvmscript} best=${programs[0]} />
      <${Predictions} trials=${predictions} />
      ${job.value && tasks.value && html`<${Roofline} job=${job.value} classes=${classes.value} parts=${subgraphs(tasks.value.items)} here=${workload} />`}
      <${Fastest} task=${task} programs=${programs} />
    `}
  <//>`;
}

// Variants that compute the same. The model is compiled with the fastest.
function Variants({ id, task, tasks }) {
  const others = tasks.filter((one) => one.workload !== task.workload && baseWorkload(one) === baseWorkload(task));
  if (!others.length) return null;
  return html`<p>The same is computed
    ${others.map((one) => html` <a href=${`#/jobs/${encodeURIComponent(id)}/tasks/${encodeURIComponent(one.workload)}`}>${one.variant ? `by ${one.variant}` : "as imported"}</a> in ${latency(one.best_s)}`)}.</p>`;
}

function Programs({ tvmscript, best }) {
  return html`<section class="card">
    <h2>The sketch's decisions</h2>
    ${best?.decisions
      ? html`<pre tabindex="0">${best.decisions}</pre>`
      : html`<p class="muted">Not stored yet: the next round of a job stores it.</p>`}
    <p class="muted">Lines marked − and + differ between the two.</p>
    <div class="two">
      <div><h2>Before</h2><${Script} text=${tvmscript} other=${best?.tvmscript} sign="−" /></div>
      <div><h2>The best program</h2><${Script} text=${best?.tvmscript} other=${tvmscript} sign="+" /></div>
    </div>
  </section>`;
}

// A TVMScript with its loops in bold, and a mark at lines that the other one lacks.
function Script({ text, other, sign }) {
  const lines = useMemo(() => text && marked(text, other), [text, other]);
  if (!lines) return html`<p class="muted">Not stored yet.</p>`;
  return html`<pre class="script" tabindex="0">${lines.map(
    ({ line, isOwn }) => html`<span class=${isOwn ? "own" : ""}>${isOwn ? sign : " "} ${LOOP.test(line) ? html`<b>${line}</b>` : line}${"\n"}</span>`,
  )}</pre>`;
}

// Predicted against measured latency of each program.
function Predictions({ trials }) {
  const rows = useMemo(
    () =>
      trials.latency_s
        .map((measured, index) => ({ measured, predicted: trials.predicted_s[index], estimated: trials.estimated_s[index] }))
        .filter((row) => row.predicted > 0),
    [trials],
  );
  const x = useMemo(() => ({ label: "measured", format: latency, log: true, values: rows.map((row) => row.measured) }), [rows]);
  const series = useMemo(
    () =>
      ["predicted", "estimated"]
        .map((label) => ({ label, kind: "points", values: rows.map((row) => row[label]) }))
        .filter(({ values }) => values.some((value) => value !== null))
        .concat({ label: "as measured", kind: "line", colour: "var(--muted)", values: x.values }),
    [rows],
  );
  const ranks = ["predicted", "estimated"].map((name) => {
    const known = rows.filter((row) => row[name] !== null);
    return [name, rankCorrelation(known.map((row) => row[name]), known.map((row) => row.measured))];
  });
  return html`<section class="card">
    <${Chart} title="Predicted and measured" note="Latencies that the cost model (predicted) and its analytic part (estimated) gave for this job's programs."
      x=${x} y=${{ label: "predicted", format: latency, log: true }} series=${series} />
    <p>Rank correlation with the measured times (Spearman): ${ranks.map(([name, value], at) => html`${at > 0 && ", "}${name} <b>${value === null ? "–" : value.toFixed(2)}</b>`)}.</p>
  </section>`;
}

function Fastest({ task, programs }) {
  if (!programs.length) return null;
  return html`<section class="card">
    <h2>The fastest programs</h2>
    <table class="cards">
      <caption class="hidden">The fastest programs known on the device class</caption>
      <thead><tr><th scope="col" class="number">Latency</th><th scope="col" class="number">Repeats</th><th scope="col" class="number">Speed</th><th scope="col">Measured</th><th scope="col">Trace</th></tr></thead>
      <tbody>
        ${programs.map(
          (one, number) => html`<tr>
            <th scope="row" class="number" data-label="Latency">${latency(one.latency_s)}</th>
            <td class="number" data-label="Repeats">${latency(Math.min(...one.run_s))} to ${latency(Math.max(...one.run_s))}</td>
            <td class="number" data-label="Speed">${speed(task.flops, one.latency_s)}</td>
            <td data-label="Measured">${ago(one.created_at)}</td>
            <td data-label="Trace"><a href=${`data:application/json,${encodeURIComponent(one.trace)}`} download=${`${task.workload}-${number}.json`} aria-label=${`Download trace ${number + 1}`}>download</a></td>
          </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
}
