// Components that several pages use.
import { useState } from "preact/hooks";
import { html } from "tunefarm/html.js";

// The most trials of a job: such a job has another goal.
const MAX_TRIALS = 10_000_000;

// An answer: its value rendered by `children`, or a problem, or a word while it is loading.
export function Answer({ answer, children }) {
  const { value, problem } = answer;
  return html`${problem && html`<${Alert} problem=${problem} />`}
  ${value !== undefined ? children(value) : !problem && html`<p class="muted" role="status">Loading …</p>`}`;
}

export function Alert({ problem }) {
  return html`<p class="alert" role="alert">${problem.message}</p>`;
}

export function State({ state }) {
  return html`<span class=${`state ${state}`}>${state}</span>`;
}

// A workload's hash, for the command line, with a button that copies it.
export function Hash({ workload }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(workload);
    setCopied(true);
  };
  // Browsers allow the clipboard only over https and on localhost.
  return html`<code>${workload}</code>${navigator.clipboard && html` <button type="button" class="small" onClick=${copy} aria-label=${`Copy the hash ${workload}`}>${isCopied ? "copied" : "copy"}</button>`}`;
}

// A figure with its name below it.
export function Fact({ name, children }) {
  return html`<div class="fact"><dd>${children}</dd><dt>${name}</dt></div>`;
}

// The progress of a job's trials.
export function Trials({ job, leftS }) {
  const isEndless = job.trials === MAX_TRIALS;
  const whole = Math.max(job.trials, job.trials_done);
  const left = leftS === null || leftS === undefined ? "" : leftS;
  return html`<span class="trials">
    <progress max=${Math.max(1, whole)} value=${isEndless && !job.finished ? undefined : job.trials_done} aria-label=${`Trials of ${job.model_name}`}></progress>
    <span>${job.trials_done.toLocaleString("en")}${!isEndless && ` / ${whole.toLocaleString("en")}`}${left && html` <span class="muted">${left}</span>`}</span>
  </span>`;
}

// The tuned model's speed-up.
export function Gain({ job }) {
  const { untuned_latency_s: untuned, tuned_latency_s: tuned } = job;
  return untuned && tuned ? html`<b class="gain">${(untuned / tuned).toPrecision(3)}×</b>` : "–";
}
