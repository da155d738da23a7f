// Charts: lines and points by uPlot, treemaps by d3-hierarchy. Each chart has a title, a sentence and a table
// of its numbers.
import { hierarchy, treemap } from "d3-hierarchy";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "tunefarm/html.js";
import { useTheme } from "tunefarm/hooks.js";
import uPlot from "uplot";

const COLOURS = 8;
const TABLE_ROWS = 40;

// The CSS colour of series or subgraph number `n`. Numbers beyond the palette share the last colour.
export function colour(number) {
  return `var(--series-${Math.min(number, COLOURS - 1)})`;
}

// The colour of an area below a line.
function fill(stroke) {
  return `color-mix(in srgb, ${stroke} 45%, var(--surface))`;
}

const PALETTE = Array.from({ length: COLOURS }, (_, number) => colour(number));
// The values of colours that are known in a theme, whose value of useTheme() is `theme`.
let known = { theme: null, values: new Map() };

// The current values of the style sheet's colours, because a canvas doesn't know their names. All are read at once,
// because each read makes the browser compute the page's styles.
function resolved(theme, colours) {
  if (known.theme !== theme) known = { theme, values: new Map() };
  const common = known.values.size ? [] : ["var(--muted)", "var(--line)", "var(--surface)", ...PALETTE, ...PALETTE.map(fill)];
  const unknown = [...new Set([...common, ...colours])].filter((css) => !known.values.has(css));
  const probes = unknown.map((css) => {
    const probe = document.createElement("i");
    probe.style.color = css;
    return probe;
  });
  document.body.append(...probes);
  probes.forEach((probe, index) => known.values.set(unknown[index], getComputedStyle(probe).color));
  probes.forEach((probe) => probe.remove());
  return colours.map((css) => known.values.get(css));
}

// The width in pixels of the element with the ref; 0 until it is on the page. An observer is told after the page's
// layout and before it is painted. A measurement would make the browser lay the page out for each chart.
function useWidth() {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return [box, width];
}

// A chart of several series of numbers (or nulls) over one x.
// title, note   a few words and a sentence about the chart
// x, y, series  { label, format, values, log }; a series also has a `kind`: line, step, points or area
// (stacked, the first on top)
// names         the name of each x; null for an x without a name
export function Chart({ title, note, x, y, series, names, height = 260 }) {
  const [box, width] = useWidth();
  const { colours } = useTheme();
  const drawing = useRef(null);
  const [at, setAt] = useState(null);
  const isEmpty = x.values.length === 0 || series.every((one) => one.values.every((value) => value === null));
  useLayoutEffect(() => {
    if (isEmpty || !width) return undefined;
    const strokes = series.map((one, number) => one.colour ?? colour(number));
    const fills = strokes.map(fill);
    const [text, grid, surface, ...found] = resolved(colours, ["var(--muted)", "var(--line)", "var(--surface)", ...strokes, ...fills]);
    const line = { stroke: grid, width: 1 };
    const axis = { stroke: text, grid: line, ticks: line, labelSize: 20, labelFont: "12px system-ui", labelGap: 0 };
    const plot = new uPlot(
      {
        width,
        height,
        legend: { show: false },
        cursor: { points: { size: 7 }, drag: { x: false, y: false } },
        scales: { x: scale(x), y: scale(y, series.some((one) => one.kind === "area")) },
        axes: [
          { ...axis, ...ticks(x), label: x.label, space: 70 },
          {
            ...axis,
            ...ticks(y),
            label: y.label,
            size: (_, values) => 20 + 8 * Math.max(...(values ?? [""]).map((one) => one.length)),
          },
        ],
        series: [{}, ...series.map((one, number) => drawn(one, found[number], found[series.length + number], surface))],
        hooks: { setCursor: [(self) => setAt(self.cursor.idx ?? null)] },
      },
      [x.values, ...stacked(series)],
      box.current,
    );
    drawing.current = plot;
    return () => plot.destroy();
  }, [x.values, series, width, colours, isEmpty]);
  // Move the cursor to the point with the index; away with null.
  const point = (index) => {
    const plot = drawing.current;
    const lowest = index === null ? [] : plot.data.slice(1).map((values) => values[index]).filter((value) => value !== null);
    plot.setCursor(lowest.length ? { left: plot.valToPos(x.values[index], "x"), top: plot.valToPos(Math.min(...lowest), "y") } : { left: -10, top: -10 });
  };
  const onKeyDown = (event) => {
    const places = named(x, names).filter((index) => series.some((one) => one.values[index] !== null));
    const here = places.findLastIndex((index) => at !== null && index <= at);
    const next = moved(event.key, here, places.length);
    if (next === undefined) return;
    event.preventDefault();
    point(next === null ? null : places[next]);
  };
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong>${note && html` <span class="muted">${note}</span>`}</figcaption>
    ${!isEmpty &&
    html`<ul class="legend" aria-hidden="true">
      ${at !== null && html`<li class="muted">${x.label} ${x.format(x.values[at])}${names?.[at] && html` <b>${names[at]}</b>`}</li>`}
      ${series.map(
        (one, number) => html`<li key=${one.label}>
          <i style=${{ background: one.colour ?? colour(number) }}></i>${one.label}
          ${at !== null && one.values[at] !== null && html` <b>${(one.format ?? y.format)(one.values[at])}</b>`}
        </li>`,
      )}
    </ul>`}
    <div class="plot" ref=${box} role="img" aria-label=${`${title}. ${note ?? ""}`} title=${isEmpty ? undefined : "Arrow keys read the values"}
      tabindex=${isEmpty ? undefined : 0} onKeyDown=${isEmpty ? undefined : onKeyDown} onBlur=${() => drawing.current && point(null)}></div>
    ${isEmpty ? html`<p class="muted">Nothing has been measured yet.</p>` : html`<${Numbers} title=${title} x=${x} y=${y} series=${series} names=${names} />`}
  </figure>`;
}

// The place, of `count`, to which a key moves a chart's cursor from `here` (-1: nowhere). Null removes the cursor.
function moved(key, here, count) {
  const last = count - 1;
  const tenth = Math.ceil(count / 10);
  const to = { ArrowRight: here + 1, ArrowLeft: here < 0 ? last : here - 1, PageDown: here + tenth, PageUp: here - tenth, Home: 0, End: last }[key];
  if (key === "Escape") return null;
  return to === undefined ? undefined : Math.min(last, Math.max(0, to));
}

// The indices of a chart's points: those with a name, if points have names.
function named(x, names) {
  return names?.flatMap((name, index) => (name ? [index] : [])) ?? x.values.map((_, index) => index);
}

function scale({ log, range }, fromZero = false) {
  if (log) {
    return { time: false, distr: 3, range: (_, low, high) => [low / 1.25, high * 1.25] };
  }
  return { time: false, range: range ?? ((_, low, high) => [fromZero ? 0 : low, high > low ? high : low + 1]) };
}

// The positions and labels of an axis's ticks. On a logarithmic axis, ticks are at 1, 2 and 5 times powers of
// ten. On a long axis, they are at powers of ten only, and on a short one closer.
function ticks({ log, format }) {
  const values = (_, splits) => splits.map(format);
  if (!log) return { values };
  const splits = (_plot, _axis, low, high) => {
    const ratio = high / low;
    const steps = ratio > 300 ? [1] : ratio > 5 ? [1, 2, 5] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      found.push(...steps.map((step) => step * 10 ** power).filter((one) => one >= low && one <= high));
    }
    return found;
  };
  return { values, splits, filter: (_, found) => found };
}

// uPlot's options for a series, with the colours of its line, of the area below and of the page.
function drawn({ kind, label, values }, stroke, fill, surface) {
  const isSingle = values.filter((value) => value !== null).length === 1;
  // A line through a single point would be invisible.
  const points = isSingle ? { show: true, size: 7, stroke, fill: stroke } : { show: false };
  const plain = { label, stroke, width: 2, spanGaps: true, points };
  if (kind === "points") {
    return { ...plain, paths: () => null, points: { show: true, size: 7, width: 1.5, stroke, fill: surface } };
  }
  if (kind === "step") return { ...plain, paths: uPlot.paths.stepped({ align: 1 }) };
  if (kind === "area") return { ...plain, width: 1, fill };
  return plain;
}

// The values to draw: each area is stacked on the areas after it.
function stacked(series) {
  const values = series.map((one) => one.values);
  for (let number = series.length - 2; number >= 0; number--) {
    if (series[number].kind === "area") {
      values[number] = values[number].map((value, index) => (value ?? 0) + (values[number + 1][index] ?? 0));
    }
  }
  return values;
}

// A table of a chart's numbers, with at most TABLE_ROWS rows, for users who can't see the chart.
function Numbers({ title, x, y, series, names }) {
  const [isOpen, setOpen] = useState(false);
  const places = named(x, names);
  const every = Math.max(1, Math.ceil(places.length / TABLE_ROWS));
  const rows = isOpen ? places.filter((_, place) => place % every === 0) : [];
  return html`<details class="numbers" onToggle=${(event) => setOpen(event.target.open)}>
    <summary>Numbers</summary>
    <div class="scroll" tabindex="0" role="region" aria-label=${`Numbers: ${title}`}>
      <table>
        <thead><tr>${names && html`<th scope="col">Subgraph</th>`}<th scope="col" class="number">${x.label}</th>${series.map((one) => html`<th scope="col" class="number">${one.label}</th>`)}</tr></thead>
        <tbody>
          ${rows.map(
            (index) => html`<tr>
              ${names && html`<td>${names[index]}</td>`}<td class="number">${x.format(x.values[index])}</td>
              ${series.map((one) => html`<td class="number">${one.values[index] === null ? "–" : (one.format ?? y.format)(one.values[index])}</td>`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </details>`;
}

// A rectangle in which each item's area is proportional to its `value`.
//   items   { key, label, detail, value, colour, href }
// whole   the value of the full rectangle: a smaller total gives a smaller map
export function Treemap({ title, note, items, whole, height = 220 }) {
  const [box, full] = useWidth();
  const total = items.reduce((sum, item) => sum + item.value, 0);
  const side = Math.sqrt(total / Math.max(whole, total));
  // The item with the focus: a small one has no room for its words.
  const [at, setAt] = useState(null);
  const root = hierarchy({ children: items.filter((item) => item.value > 0) }).sum((item) => item.value ?? 0);
  treemap().size([full * side, height * side]).paddingInner(3)(root);
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong> <span class="muted">${note}</span>${at && html` <b>${at.label}</b> ${at.detail}`}</figcaption>
    <ul class="treemap" ref=${box} style=${{ height: `${height * side}px` }}>
      ${root.leaves().filter(({ x0, x1, y0, y1 }) => Math.min(x1 - x0, y1 - y0) > 2).map(({ data, x0, x1, y0, y1 }) => {
        const place = { left: `${x0}px`, width: `${x1 - x0}px`, top: `${y0}px`, height: `${y1 - y0}px` };
        return html`<li key=${data.key} style=${{ ...place, "--c": data.colour }}>
          <a href=${data.href} onFocus=${() => setAt(data)} onBlur=${() => setAt(null)} title=${`${data.label}: ${data.detail}`}><b>${data.label}</b><span>${data.detail}</span></a>
        </li>`;
      })}
    </ul>
  </figure>`;
}
