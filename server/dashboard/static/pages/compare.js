// Several jobs side by side: their results, their latency over time, and the subgraphs that differ.
import { useMemo, useState } from "preact/hooks";
import { Chart, colour } from "tunefarm/charts.js";
import { digits, duration, latency, plural, speedup } from "tunefarm/format.js";
import { useAnswers, useTitle } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Answer, DeviceName, Gain, Ratio, Section, State, Trials } from "tunefarm/pages/parts.js";
import { joined, progress, subgraphs } from "tunefarm/series.js";

// The most jobs to compare: each needs its own colour.
const MOST = 6;
const LOOK_EVERY_S = 5;
// Answers for each job: the job, its tasks, its trials.
const EACH = 3;

// `query` has the ids of the jobs, separated by commas. The others are compared with the first.
export function ComparePage({ query }) {
  const asked = new URLSearchParams(query).get("jobs")?.split(",").filter(Boolean) ?? [];
  const ids = [...new Set(asked)].slice(0, MOST);
  const answers = useAnswers(
    ids.flatMap((id) => ["", "/tasks", "/trials"].map((end) => `v1/jobs/${encodeURIComponent(id)}${end}`)).concat("v1/device-classes"),
    (values) => values.some((value, at) => at % EACH === 0 && value.finished === false),
    LOOK_EVERY_S,
  );
  useTitle(`Compare ${plural(ids.length, "job")}`);
  if (ids.length < 2) return html`<h1>Compare jobs</h1><p>Select two or more jobs <a href="#/jobs">in the list of jobs</a>.</p>`;
  return html`<h1>Compare ${plural(ids.length, "job")}</h1>
    ${asked.length > MOST && html`<p class="muted">Only the first ${MOST} jobs are compared.</p>`}
    <${Answer} answer=${answers}>${(values) => html`<${Comparison} values=${values} />`}<//>`;
}

function Comparison({ values }) {
  const compared = useMemo(() => {
    const found = [];
    for (let at = 0; at + 1 < values.length; at += EACH) {
      const [job, { items }, trials] = values.slice(at, at + EACH);
      found.push({ job, parts: subgraphs(items, trials), steps: progress(items, trials).steps });
    }
    return found;
  }, [values]);
  return html`
    <${Results} compared=${compared} classes=${values.at(-1).items} />
    <${Curves} compared=${compared} />
    <${Subgraphs} compared=${compared} />
  `;
}

function JobLink({ job, number }) {
  return html`<i class="dot" style=${{ background: colour(number) }}></i><a href=${`#/jobs/${encodeURIComponent(job.id)}`}>${job.model_name}</a> <code class="muted">${job.id.slice(0, 12)}</code>`;
}

function Results({ compared, classes }) {
  const first = compared[0].job.tuned_latency_s;
  return html`<section class="card">
    <h2>Results</h2>
    <p class="muted">A latency after “about” is an estimate. The others were measured.</p>
    <table class="cards">
      <caption class="hidden">Results of the jobs</caption>
      <thead><tr><th scope="col">Job</th><th scope="col">Device</th><th scope="col">State</th><th scope="col">Trials</th><th scope="col" class="number">Took</th><th scope="col" class="number">Latency</th><th scope="col" class="number">vs. first job</th><th scope="col" class="number">vs. ONNX Runtime</th><th scope="col" class="number">vs. untuned</th></tr></thead>
      <tbody>
        ${compared.map(
          ({ job, steps }, number) => html`<tr key=${job.id}>
            <th scope="row" data-label="Job"><${JobLink} job=${job} number=${number} /></th>
            <td data-label="Device"><${DeviceName} classes=${classes} job=${job} /></td>
            <td data-label="State"><${State} state=${job.state} /></td>
            <td data-label="Trials"><${Trials} job=${job} /></td>
            <td class="number" data-label="Took">${job.started_at && job.finished_at ? duration(job.finished_at - job.started_at) : "–"}</td>
            <td class="number" data-label="Latency"><${Latency} job=${job} steps=${steps} /></td>
            <td class="number" data-label="vs. first job">${number ? speedup(first, job.tuned_latency_s) : "–"}</td>
            <td class="number" data-label="vs. ONNX Runtime"><${Ratio} job=${job} /></td>
            <td class="number" data-label="vs. untuned"><${Gain} job=${job} /></td>
          </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
}

// The measured latency of a job's model; before it is known, the estimate.
function Latency({ job, steps }) {
  const estimate = steps.network_s.at(-1) ?? null;
  if (job.tuned_latency_s !== null || estimate === null) return latency(job.tuned_latency_s);
  return html`<span class="muted">about</span> ${latency(estimate)}`;
}

function Curves({ compared }) {
  const [by, setBy] = useState("trials");
  const { x, series } = useMemo(() => {
    const column = by === "trials" ? "trial" : "at_s";
    const lines = joined(compared.map(({ steps }) => ({ x: steps[column], y: steps.network_s })));
    return {
      x: { label: by === "trials" ? "trials" : "time since the start", format: by === "trials" ? digits : duration, values: lines.x },
      series: lines.y.map((values, number) => ({ label: `${compared[number].job.model_name} ${compared[number].job.id.slice(0, 12)}`, kind: "step", values })),
    };
  }, [compared, by]);
  return html`<section class="card">
    <fieldset class="choice">
      <legend class="hidden">Compare against</legend>
      ${["trials", "time"].map(
        (one) => html`<label><input type="radio" name="by" checked=${by === one} onChange=${() => setBy(one)} /> ${one}</label>`,
      )}
    </fieldset>
    <${Chart} title="Best latency" note="Estimated as the sum of all subgraphs' best latencies, once each has been measured."
      x=${x} y=${{ label: "latency", format: latency, log: true }} series=${series} />
  </section>`;
}

// A row for each subgraph of several jobs, the largest difference first.
function Subgraphs({ compared }) {
  const { rows, single } = useMemo(() => {
    const found = new Map();
    compared.forEach(({ parts }, number) =>
      parts.forEach((part) => {
        if (!found.has(part.workload)) found.set(part.workload, { part, cells: compared.map(() => null) });
        found.get(part.workload).cells[number] = part;
      }),
    );
    const shared = [...found.values()].filter(({ cells }) => cells.filter(Boolean).length > 1);
    const spread = ({ cells }) => {
      const known = cells.flatMap((cell) => (cell && cell.job_s !== null ? [cell.job_s * cell.weight] : []));
      return known.length > 1 ? Math.max(...known) - Math.min(...known) : -1;
    };
    return { rows: shared.sort((a, b) => spread(b) - spread(a)), single: found.size - shared.length };
  }, [compared]);
  return html`<${Section} title="Subgraphs">
    <p class="muted">The best latency that each job knew, by its own trials or from before.${single > 0 && ` ${plural(single, "subgraph")} of one job alone ${single === 1 ? "is" : "are"} left out.`}</p>
    ${rows.length === 0
      ? html`<p class="muted">The jobs have no subgraph in common yet.</p>`
      : html`<div class="scroll wide" tabindex="0" role="region" aria-label="Subgraphs of the jobs"><table class="cards">
        <caption class="hidden">Best latency of each subgraph, the largest difference first</caption>
        <thead><tr><th scope="col">Subgraph</th>${compared.map(({ job }, number) => html`<th scope="col" class="column"><${JobLink} job=${job} number=${number} /></th>`)}</tr></thead>
        <tbody>
          ${rows.map(
            ({ part, cells }) => html`<tr key=${part.workload}>
              <th scope="row">${part.label}${part.own.layer && html`<br /><span class="muted operators">${part.own.name}</span>`}</th>
              ${cells.map(
                (cell, number) => html`<td class="number" data-label=${`${compared[number].job.model_name} ${compared[number].job.id.slice(0, 6)}`}><span>${cell === null ? "–" : latency(cell.job_s)}
                  ${number > 0 && cell?.job_s && cells[0]?.job_s ? html`<br /><span class="muted">${speedup(cells[0].job_s, cell.job_s)}</span>` : ""}</span></td>`,
              )}
            </tr>`,
          )}
        </tbody>
      </table></div>`}
  <//>`;
}
