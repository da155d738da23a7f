// What a model's file holds, before any job: its inputs, outputs and operators. A scheduler's child reads it.
import { useEffect, useState } from "preact/hooks";
import { call, get } from "tunefarm/api.js";
import { plural } from "tunefarm/format.js";
import { html } from "tunefarm/html.js";

const POLL_MS = 700;
// The most operators that are listed by name.
const LISTED = 12;

// The outline of the file's stored model: { state, problem, format, inputs, outputs, operators }; null for no file
// and until the file is stored. `store` uploads a file and returns its sha256; `onProblem` gets a failure.
export function useOutline(file, store, onProblem) {
  const [outline, setOutline] = useState(null);
  useEffect(() => {
    let isCurrent = true;
    const read = async () => {
      const path = `v1/models/${await store(file)}/outline`;
      let found = await call("POST", path);
      while (isCurrent) {
        setOutline(found);
        if (found.state === "failed") throw new Error(`This model can't be read: ${found.problem}`);
        if (found.state === "done") return;
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
        found = await get(path);
      }
    };
    setOutline(null);
    if (file) read().catch((problem) => isCurrent && onProblem(problem));
    return () => {
      isCurrent = false;
    };
  }, [file]);
  return outline;
}

// The shapes for the inputs with dynamic dimensions, with a question mark for each of these: "x=?,3,224,224".
export function openShapes(outline) {
  return (outline?.inputs ?? [])
    .filter(({ shape }) => shape?.some((extent) => typeof extent === "string"))
    .map(({ name, shape }) => `${name}=${shape.map((extent) => (typeof extent === "string" ? "?" : extent)).join(",")}`)
    .join(" ");
}

export function Outline({ outline }) {
  if (outline === null || outline.state === "failed") return null;
  if (outline.state === "waiting") return html`<p role="status" class="muted">Reading the model's inputs and operators …</p>`;
  const unsupported = outline.operators.filter((one) => !one.supported);
  const shapes = openShapes(outline);
  return html`<dl class="pairs outline">
    <dt>Format</dt><dd>${outline.format}</dd>
    <dt>Inputs</dt><dd>${outline.inputs.map(({ name, dtype, shape }) => html`<div><code>${name}</code> ${dtype} ${shapeText(shape)}</div>`)}</dd>
    <dt>Outputs</dt><dd>${outline.outputs.map((name) => html`<code>${name}</code> `)}</dd>
    <dt>Operators</dt><dd>${operatorsText(outline.operators)}</dd>
    ${unsupported.length > 0 && html`<dt>Not supported</dt><dd><span role="alert"><b>${operatorsText(unsupported)}</b>: a job would fail. Replace them, and export the model again.</span></dd>`}
    ${shapes && html`<dt>To choose</dt><dd>The file leaves dimensions open. Give the batch size if only the batch is open, else the shapes: <code>${shapes}</code></dd>`}
  </dl>`;
}

function shapeText(shape) {
  return shape === null ? "of any shape" : `[${shape.map((extent) => extent || "?").join(", ")}]`;
}

// "Conv 20, Relu 17 and 3 others"
function operatorsText(operators) {
  const listed = operators.slice(0, LISTED).map(({ name, count }) => `${name} ${count}`).join(", ");
  const others = operators.length - LISTED;
  return others > 0 ? `${listed} and ${plural(others, "other")}` : listed;
}
