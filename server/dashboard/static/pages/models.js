// The learned cost models: each version's accuracy on records outside its training set.
import { useMemo } from "preact/hooks";
import { Chart } from "tunefarm/charts.js";
import { ago, digits, latency, percent } from "tunefarm/format.js";
import { useAnswer } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { Answer } from "tunefarm/pages/parts.js";

const METRICS = [["pairwise", "pairs in the right order"], ["recall", "share of 30 fastest found"], ["r2", "R² of throughput"]];

export function ModelsPage() {
  const models = useAnswer("v1/cost-models", 15);
  return html`
    <h1>Cost models</h1>
    <${Answer} answer=${models}>
      ${({ items }) =>
        items.length
          ? items.map((model) => html`<${Model} key=${model.device_class} model=${model} />`)
          : html`<p class="muted">No cost model yet: training begins with the first trials.</p>`}
    <//>
  `;
}

function Model({ model }) {
  const versions = useAnswer(`v1/cost-models/${model.device_class}/versions`);
  return html`<section class="card">
    <h2>${model.device_name} <span class="muted">device class <code>${model.device_class}</code></span></h2>
    <p>${digits(model.versions)} versions, the last one ${ago(model.created_at)} from ${digits(model.records)} records in ${latency(model.train_s)}.</p>
    <${Answer} answer=${versions}>${({ items }) => html`<${Accuracy} versions=${items} />`}<//>
  </section>`;
}

function Accuracy({ versions }) {
  const measured = useMemo(() => versions.filter((one) => one.metrics !== null), [versions]);
  const x = useMemo(() => ({ label: "records", format: digits, values: measured.map((one) => one.records) }), [measured]);
  const charts = useMemo(
    () =>
      METRICS.map(([metric, label]) => ({
        label,
        series: ["learned", "analytic"].map((kind) => ({
          label: kind,
          kind: "line",
          values: measured.map((one) => one.metrics[kind][metric]),
        })),
      })),
    [measured],
  );
  return html`<div class="two">
    ${charts.map(
      ({ label, series }) => html`<${Chart} title=${`Accuracy: ${label}`} note="By the number of records of each version." x=${x}
        y=${{ label, format: label.startsWith("R²") ? digits : percent }} series=${series} height=${200} />`,
    )}
  </div>`;
}
