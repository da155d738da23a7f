// A client of the service's HTTP API. In a report, it returns answers embedded in the document.

const embedded = document.getElementById("answers");
const answers = embedded && JSON.parse(embedded.textContent);

// Whether this is a report: it shows one job, without requests, changes or sign-in.
export const isReport = answers !== null;

// A problem document of the service (RFC 9457), or the error of an unreachable service.
export class Problem extends Error {
  constructor(status, kind, detail) {
    super(detail);
    this.status = status;
    this.kind = kind;
  }
}

// Requests that the document started early. Each answer is used once.
const asked = globalThis.asked ?? new Map();

function take(path) {
  const answer = asked.get(path);
  asked.delete(path);
  return answer;
}

let onSignedOut = () => {};

// Call `callback` whenever the service asks for a token.
export function whenSignedOut(callback) {
  onSignedOut = callback;
}

export async function get(path) {
  if (!isReport) return call("GET", path);
  if (path in answers) return answers[path];
  throw new Problem(404, "not-in-report", "This report doesn't have that: open the service's dashboard.");
}

// Send a request. `body` is sent as JSON unless it is a file. Throws Problem.
export async function call(method, path, body, headers = {}) {
  const isFile = body instanceof Blob;
  const request = () =>
    fetch(path, {
      method,
      headers: body === undefined || isFile ? headers : { "Content-Type": "application/json", ...headers },
      body: body === undefined || isFile ? body : JSON.stringify(body),
      credentials: "same-origin",
    });
  let response;
  try {
    response = await ((method === "GET" && take(path)) || request());
  } catch {
    throw new Problem(0, "unreachable", "The service doesn't answer: it may be starting again.");
  }
  if (response.ok) return response.status === 204 ? null : response.json();
  const problem = await response.json().catch(() => ({}));
  const kind = String(problem.type ?? "").replace("urn:tunefarm:problem:", "");
  if (response.status === 401) onSignedOut();
  throw new Problem(response.status, kind, problem.detail ?? `${response.status} ${response.statusText}`);
}

// Listen to a job's events, from the first one until the job ends. Returns a function that stops listening.
export function watchJob(jobId, onEvent) {
  if (isReport) return () => {};
  const source = new EventSource(`v1/jobs/${encodeURIComponent(jobId)}/events`);
  for (const kind of ["state", "progress", "round", "device_lost"]) {
    source.addEventListener(kind, (event) => onEvent(kind, JSON.parse(event.data)));
  }
  return () => source.close();
}
