// Format numbers for people. A number and its unit stay on one line.

const SPACE = "\u00a0"; // where no line breaks

const LATENCIES = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];

// Seconds with three digits, in s to ns: 14.2 ms. A dash if unknown.
export function latency(secs) {
  if (secs === null || secs === undefined || !Number.isFinite(secs)) return "–";
  if (secs === 0) return "0";
  const [unit, size] = LATENCIES.find(([, size]) => secs >= size) ?? LATENCIES.at(-1);
  return `${digits(secs / size)}${SPACE}${unit}`;
}

// Whole seconds, minutes and hours: 40 s, 3 min 20 s, 2 h 5 min.
export function duration(secs) {
  if (secs === null || secs === undefined) return "unknown";
  const whole = Math.max(0, Math.round(secs));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  if (hours >= 48) return `${Math.floor(hours / 24)}${SPACE}days`;
  if (hours) return `${hours}${SPACE}h ${minutes}${SPACE}min`;
  return minutes ? `${minutes}${SPACE}min ${whole % 60}${SPACE}s` : `${whole}${SPACE}s`;
}

// How long ago a time (epoch seconds) was.
export function ago(at) {
  const secs = Date.now() / 1e3 - at;
  if (secs < 5) return "now";
  return `${secs < 3600 ? duration(secs).replace(/ \d+\ss$/, "") : duration(secs)} ago`;
}

// A time (epoch seconds) in the reader's zone.
export function time(at) {
  return new Date(at * 1e3).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

// Three significant digits: 0.01234 becomes 0.0123, but 1234 stays.
export function digits(number) {
  if (Math.abs(number) >= 1000) return Math.round(number).toLocaleString("en");
  return String(Number(number.toPrecision(3)));
}

const PREFIXES = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1], ["m", 1e-3], ["µ", 1e-6]];

// A number with a metric prefix: 2.5 G.
export function scaled(number, unit) {
  const [prefix, size] = PREFIXES.find(([, size]) => number >= size) ?? ["", 1];
  return `${digits(number / size)}${SPACE}${prefix}${unit}`;
}

// Floating-point operations per second; a dash for subgraphs that only move data.
export function speed(flops, secs) {
  return flops ? scaled(flops / secs, "FLOP/s") : "–";
}

export function bytes(number) {
  return scaled(number, "B");
}

// A message of the service, whose numbers keep their units.
export function withUnits(text) {
  return text.replace(/(\d) (?=(?:[mµn]?s|min|h|[kMGT]?B)\b)/g, `$1${SPACE}`);
}

// Bytes with binary prefixes: 32 KiB, 1 MiB.
export function cacheSize(number) {
  return number >= 1 << 20 ? `${digits(number / (1 << 20))}${SPACE}MiB` : `${digits(number / 1024)}${SPACE}KiB`;
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(100 * share)}%`;
}

export function plural(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

// How a latency compares with an earlier one: 1.31× faster, 1.04× slower, the same.
export function speedup(before, after) {
  if (!before || !after) return "–";
  const ratio = before / after;
  if (ratio.toFixed(2) === "1.00") return "the same";
  return ratio > 1 ? `${ratio.toPrecision(3)}× faster` : `${(1 / ratio).toPrecision(3)}× slower`;
}
