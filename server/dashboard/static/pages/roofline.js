// Subgraphs under their device's limits: operations per second, and bytes per second from memory and caches.
import { useMemo } from "preact/hooks";
import { Chart } from "tunefarm/charts.js";
import { digits, scaled } from "tunefarm/format.js";
import { html } from "tunefarm/html.js";
import { Section } from "tunefarm/pages/parts.js";
import { machineLimits } from "tunefarm/series.js";

const STEPS = 60;

// `parts` are a job's subgraphs. `here`, if given, is the workload to highlight. `classes` are all device
// classes, undefined until they are loaded.
export function Roofline({ job, classes, parts, here }) {
  const device = classes?.items.find((one) => one.key === job.device_class);
  const limits = device && machineLimits(device);
  const chart = useMemo(() => limits && series(limits, parts, here), [device, parts, here]);
  if (!chart) return null;
  return html`<${Section} title="Roofline" isChart>
    <${Chart} title="Roofline" note=${`The limits of ${device.name}, as measured by calibration. A subgraph left of the bend waits for memory unless its operands stay in a cache.`}
      x=${chart.x} y=${chart.y} series=${chart.series} names=${chart.names} height=${320} />
  <//>`;
}

function series(limits, parts, here) {
  const points = parts
    .filter((part) => part.best && part.best.num_bytes > 0 && part.best.flops > 0)
    .map((part, number) => ({
      // A chart has one point for each x, so points with equal x are moved by an invisible amount.
      intensity: (part.best.flops / part.best.num_bytes) * (1 + number * 1e-6),
      speed: part.best.flops / part.best_s,
      label: part.label,
      isHere: part.tasks.some((task) => task.workload === here),
    }));
  if (!points.length) return null;
  const bends = limits.bytes.map(([, rate]) => limits.flops / rate);
  const low = Math.min(...points.map((one) => one.intensity), ...bends) / 2;
  const high = Math.max(...points.map((one) => one.intensity), ...bends) * 4;
  const grid = Array.from({ length: STEPS + 1 }, (_, step) => low * (high / low) ** (step / STEPS));
  const values = [...new Set([...grid, ...points.map((one) => one.intensity)])].sort((a, b) => a - b);
  const at = (wanted) => {
    const speeds = new Map(points.filter((one) => one.isHere === wanted).map((one) => [one.intensity, one.speed]));
    return values.map((value) => speeds.get(value) ?? null);
  };
  const labels = new Map(points.map((one) => [one.intensity, one.label]));
  const roofs = limits.bytes.map(([name, rate], number) => ({
    label: `from ${name}`,
    kind: "line",
    colour: `var(--series-${number + 2})`,
    values: values.map((value) => Math.min(limits.flops, value * rate)),
  }));
  const dots = [{ label: here ? "other subgraphs" : "subgraphs", kind: "points", colour: "var(--series-0)", values: at(false) }];
  if (points.some((one) => one.isHere)) dots.push({ label: "this subgraph", kind: "points", colour: "var(--series-1)", values: at(true) });
  return {
    x: { label: "operations a byte (FLOP/B)", format: digits, log: true, values },
    y: { label: "operations a second", format: (value) => scaled(value, "FLOP/s"), log: true },
    names: values.map((value) => labels.get(value) ?? null),
    series: [...roofs, ...dots],
  };
}
