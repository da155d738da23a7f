// Compute the charts' data from the service's answers, without touching the page.

// The base workload that a task computes. The model is compiled with its fastest task.
export function baseWorkload(task) {
  return task.variant_of || task.workload;
}

// The subgraphs of a job's model, costliest first. Each combines the tasks of one base workload.
// label                 the model's node at which the base task first occurs, or its operators
// weight                how often the base task occurs
// tasks                 the base task and its variants
//   best                  the fastest measured task, null without one
// first_s, best_s       seconds per call of the first program among `trials`, and of the best known program
// job_s                 seconds per call of the best program that the job knew: measured by it or before it
// network_s             seconds in one run of the model, by best_s
export function subgraphs(tasks, trials = { task: [], latency_s: [] }) {
  const first = new Map();
  const known = new Map(tasks.filter((task) => task.known_s !== null).map((task) => [task.id, task.known_s]));
  trials.task.forEach((id, index) => {
    const secs = trials.latency_s[index];
    if (secs === null) return;
    if (!first.has(id)) first.set(id, secs);
    known.set(id, Math.min(secs, known.get(id) ?? Infinity));
  });
  const bases = Map.groupBy(tasks, baseWorkload);
  const found = [...bases].map(([workload, members]) => {
    const own = members.find((task) => task.workload === workload) ?? members[0];
    const measured = members.filter((task) => task.best_s !== null).sort((a, b) => a.best_s - b.best_s);
    const best = measured[0] ?? null;
    const ofJob = Math.min(...members.map((task) => known.get(task.id) ?? Infinity));
    return {
      workload,
      own,
      label: own.layer || own.name,
      weight: own.weight,
      tasks: members,
      trials: members.reduce((sum, task) => sum + task.trials, 0),
      best,
      first_s: first.get(own.id) ?? null,
      best_s: best && best.best_s,
      job_s: Number.isFinite(ofJob) ? ofJob : null,
      network_s: best && best.best_s * own.weight,
    };
  });
  return found.sort((a, b) => (b.network_s ?? -1) - (a.network_s ?? -1) || a.label.localeCompare(b.label));
}

// The network's latency in seconds with the best known programs; null until every subgraph is measured.
export function network(tasks) {
  const parts = subgraphs(tasks).filter((part) => part.best || part.tasks.some((task) => task.covered));
  return parts.length && parts.every((part) => part.best) ? sum(parts.map((part) => part.network_s)) : null;
}

// The network's latency in the course of a job's trials:
// steps       the first and the last trial, and each that made the network faster: columns trial (from 1),
// at_s and network_s, the network's seconds, null until every subgraph is measured
// snapshots   at most `limit` moments: at_s, and for each base workload its seconds in one run and its trials
export function progress(tasks, trials, limit = 240) {
  const byId = new Map(tasks.map((task) => [task.id, task]));
  const bestOf = new Map();
  const network = new Map();
  const spent = new Map();
  const covered = new Set();
  for (const task of tasks) {
    const base = baseWorkload(task);
    if (!spent.has(base)) spent.set(base, 0);
    if (task.covered) covered.add(base);
    // Measurements from before the job count from the beginning.
    if (task.known_s !== null) bestOf.set(task.id, task.known_s);
  }
  const settle = (task) => {
    const members = tasks.filter((one) => baseWorkload(one) === baseWorkload(task) && bestOf.has(one.id));
    const fastest = Math.min(...members.map((one) => bestOf.get(one.id)));
    if (Number.isFinite(fastest)) network.set(baseWorkload(task), fastest * task.weight);
  };
  const wholeNetwork = () => ([...covered].every((one) => network.has(one)) ? sum(network.values()) : null);
  tasks.forEach(settle);
  let whole = wholeNetwork();
  const steps = { trial: [], at_s: [], network_s: [] };
  const snapshots = [];
  const last = trials.task.length - 1;
  const every = Math.max(1, Math.ceil(trials.task.length / limit));
  trials.task.forEach((id, index) => {
    const task = byId.get(id);
    if (!task) return;
    const base = baseWorkload(task);
    spent.set(base, spent.get(base) + 1);
    const latency = trials.latency_s[index];
    if (latency !== null && latency < (bestOf.get(id) ?? Infinity)) {
      bestOf.set(id, latency);
      settle(task);
      whole = wholeNetwork();
    }
    if (index === 0 || index === last || whole !== steps.network_s.at(-1)) {
      steps.trial.push(index + 1);
      steps.at_s.push(trials.at_s[index]);
      steps.network_s.push(whole);
    }
    if (index % every === 0 || index === last) {
      snapshots.push({ at_s: trials.at_s[index], network: new Map(network), spent: new Map(spent) });
    }
  });
  return { steps, snapshots };
}

// How much a job's latest trials made its network faster: { trials, gain, since }; null for few trials. In its last
// quarter of `trials`, the network became faster by `gain` (0.03: 3%). The last gain was `since` trials ago.
export function improvement(steps, trials) {
  const known = steps.trial.map((trial, index) => ({ trial, network_s: steps.network_s[index] })).filter(({ network_s }) => network_s !== null);
  const begun = trials * 0.75;
  if (trials < 16 || !known.length || known[0].trial > begun) return null;
  const before = known.findLast(({ trial }) => trial <= begun).network_s;
  const last = known.at(-1).network_s;
  const reached = known.find(({ network_s }) => network_s === last).trial;
  return { trials, gain: before / last - 1, since: trials - reached };
}

// The spread of a measurement's repeats: { median, low, high, noise }; null without repeats. Half of the repeats are
// within `noise` of the median, as a fraction of the median.
export function spread(secs) {
  if (!secs.length) return null;
  const sorted = [...secs].sort((a, b) => a - b);
  const median = middle(sorted);
  const deviations = sorted.map((one) => Math.abs(one - median)).sort((a, b) => a - b);
  return { median, low: sorted[0], high: sorted.at(-1), noise: middle(deviations) / median };
}

function middle(sorted) {
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// The lines of a program, each with whether `other` lacks it: lines outside a longest common subsequence of both.
// Indentation doesn't count. Without `other`, and for very long programs, no line is marked.
export function marked(text, other, limit = 2e6) {
  const lines = text.split("\n");
  const [a, b] = [lines, (other ?? "").split("\n")].map((all) => all.map((line) => line.trim()));
  if (!other || a.length * b.length > limit) return lines.map((line) => ({ line, isOwn: false }));
  // The lengths of the longest common subsequences of a's and b's ends.
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  let j = 0;
  return lines.map((line, i) => {
    while (j < b.length && a[i] !== b[j] && common[i * width + j + 1] >= common[(i + 1) * width + j]) j++;
    const isShared = j < b.length && a[i] === b[j];
    if (isShared) j++;
    return { line, isOwn: !isShared };
  });
}

// Join lines to a common x: { x, y }. `y` has each line's numbers, null if the line has no point there.
export function joined(lines) {
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const y = lines.map((line) => {
    const at = new Map(line.x.map((place, index) => [place, line.y[index]]));
    return x.map((place) => at.get(place) ?? null);
  });
  return { x, y };
}

// Spearman's rank correlation of two lists of numbers; null for fewer than three.
export function rankCorrelation(left, right) {
  if (left.length < 3) return null;
  const [a, b] = [ranks(left), ranks(right)];
  const mean = (left.length - 1) / 2;
  let [ab, aa, bb] = [0, 0, 0];
  for (let index = 0; index < a.length; index++) {
    const [x, y] = [a[index] - mean, b[index] - mean];
    [ab, aa, bb] = [ab + x * y, aa + x * x, bb + y * y];
  }
  return aa && bb ? ab / Math.sqrt(aa * bb) : null;
}

// Ranks from 0. Equal numbers get the mean of their ranks.
function ranks(numbers) {
  const order = numbers.map((_, index) => index).sort((a, b) => numbers[a] - numbers[b]);
  const found = new Array(numbers.length);
  for (let start = 0; start < order.length; ) {
    let end = start;
    while (end < order.length && numbers[order[end]] === numbers[order[start]]) end++;
    for (let at = start; at < end; at++) found[order[at]] = (start + end - 1) / 2;
    start = end;
  }
  return found;
}

export function sum(numbers) {
  let total = 0;
  for (const number of numbers) total += number;
  return total;
}

// A device class's limits with all cores: floating-point operations per second, and bytes per second from
// each memory level. Null until a device of the class is calibrated.
export function machineLimits(device) {
  const { profile } = device;
  if (!profile) return null;
  const lanes = Math.max(1, device.vector_bytes / 4);
  const each = profile.hertz * device.cores;
  return {
    flops: 2 * lanes * profile.multiply_adds.float32 * each,
    bytes: [
      ["memory", profile.memory_rate_all * profile.hertz],
      ["L3", profile.l3_rate * each],
      ["L2", profile.l2_rate * each],
      ["L1", profile.l1_rate * each],
    ],
  };
}
