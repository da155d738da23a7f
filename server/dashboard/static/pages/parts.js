// Components that several pages use.
import { useEffect, useState } from "preact/hooks";
import { useNarrow, useTurn } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";

// The most trials of a job. A job with so many has another goal.
export const MAX_TRIALS = 10_000_000;

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

// An input that keeps its typed text while its page is rendered again.
export function Field({ value, ...attributes }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  return html`<input ...${attributes} value=${typed} onInput=${(event) => setTyped(event.target.value)} />`;
}

// A part below the first screen, which `children` renders in its turn.
export function Later({ children }) {
  return useTurn() ? children() : null;
}

// A part of a long page. A phone shows its title alone until it is opened. A chart has a title of its own.
export function Section({ title, isChart, className = "card", children }) {
  const isNarrow = useNarrow();
  const [isOpen, setOpen] = useState(false);
  if (!isNarrow) return html`<section class=${className}>${!isChart && html`<h2>${title}</h2>`}${children}</section>`;
  return html`<details class="card fold" onToggle=${(event) => setOpen(event.target.open)}>
    <summary><h2>${title}</h2></summary>
    ${isOpen && children}
  </details>`;
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

// The published model's speed-up over ONNX Runtime. Before that, it is estimated; null while it is unknown.
export function ratioOf({ onnxruntime: peer, estimated_latency_s: now }) {
  return peer?.ratio ?? (peer?.latency_s && now ? peer.latency_s / now : null);
}

export function Ratio({ job }) {
  const ratio = ratioOf(job);
  if (!ratio) return "–";
  return html`${!job.onnxruntime.ratio && html`<span class="muted">about</span> `}<b class=${ratio >= 1 ? "gain" : ""}>${ratio.toPrecision(3)}×</b>`;
}

// The name of the device class with a key; the start of the key follows a name that several classes have. A
// key without a class is returned.
export function deviceName(classes, key) {
  const device = classes?.find((one) => one.key === key);
  if (!device) return key;
  const isOnly = classes.filter((one) => one.name === device.name).length === 1;
  return isOnly ? device.name : `${device.name} (${key.slice(0, 6)})`;
}

// The name of a job's device class; its target while the class isn't known.
export function DeviceName({ classes, job }) {
  return deviceName(classes, job.device_class ?? job.target);
}

// A job's tags, each a link to the jobs with that tag.
export function Tags({ job }) {
  return html`${job.tags.map((tag) => html` <a class="tag" href=${`#/jobs?tag=${encodeURIComponent(tag)}`}>${tag}</a>`)}`;
}

// The tuned model's speed-up over the untuned one.
export function Gain({ job }) {
  const { untuned_latency_s: untuned, tuned_latency_s: tuned } = job;
  return untuned && tuned ? html`<b class="gain">${(untuned / tuned).toPrecision(3)}×</b>` : "–";
}
