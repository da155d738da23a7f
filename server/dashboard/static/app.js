// The frame of all pages: the signed-in user, the menu, and the page that the address after # selects.
import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, get, isReport, whenSignedOut } from "tunefarm/api.js";
import { keepFocus } from "tunefarm/focus.js";
import { useTheme } from "tunefarm/hooks.js";
import { html } from "tunefarm/html.js";
import { AccessPage } from "tunefarm/pages/access.js";
import { ApiPage } from "tunefarm/pages/http_api.js";
import { ComparePage } from "tunefarm/pages/compare.js";
import { DevicesPage } from "tunefarm/pages/devices.js";
import { JobPage } from "tunefarm/pages/job.js";
import { JobsPage } from "tunefarm/pages/jobs.js";
import { ModelsPage } from "tunefarm/pages/models.js";
import { ReleasesPage } from "tunefarm/pages/releases.js";
import { SchedulesPage } from "tunefarm/pages/schedules.js";
import { SignIn } from "tunefarm/pages/sign_in.js";
import { SubgraphPage } from "tunefarm/pages/subgraph.js";

// Addresses and their pages. A part in braces is passed to the page. Routes with a title are in the menu, for
// users with the `scope`, if there is one.
const ROUTES = [
  { path: "jobs", title: "Jobs", page: JobsPage },
  { path: "jobs/{id}", page: JobPage },
  { path: "jobs/{id}/tasks/{workload}", page: SubgraphPage },
  { path: "compare", page: ComparePage },
  { path: "devices", title: "Devices", page: DevicesPage },
  { path: "schedules", title: "Schedules", page: SchedulesPage },
  { path: "releases", title: "Releases", page: ReleasesPage },
  { path: "models", title: "Cost models", page: ModelsPage },
  { path: "access", title: "Access", page: AccessPage, scope: "admin" },
  { path: "api", title: "API", page: ApiPage },
];

function routeOf(address) {
  const parts = address.split("?")[0].split("/").map(decodeURIComponent);
  for (const route of ROUTES) {
    const names = route.path.split("/");
    const fits = names.length === parts.length && names.every((name, at) => name[0] === "{" || name === parts[at]);
    if (fits) {
      const given = names.flatMap((name, at) => (name[0] === "{" ? [[name.slice(1, -1), parts[at]]] : []));
      return { ...route, given: { ...Object.fromEntries(given), query: address.split("?")[1] ?? "" } };
    }
  }
  return null;
}

function useAddress() {
  const read = () => location.hash.replace(/^#\/?/, "") || (document.body.dataset.start ?? "jobs");
  const [address, setAddress] = useState(read);
  useEffect(() => {
    const follow = () => setAddress(read());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return address;
}

function App() {
  const [session, setSession] = useState(undefined);
  const address = useAddress();
  const [path] = address.split("?");
  const main = useRef(null);
  const isFirst = useRef(true);
  const look = () => get("v1/session").then(setSession, (problem) => problem.status === 401 || setSession({ problem }));
  useLayoutEffect(() => {
    whenSignedOut(() => setSession(null));
    if (isReport) setSession({ who: "report", scopes: [] });
    else look();
  }, []);
  useEffect(() => {
    // Move the focus to the new page, for keyboards and screen readers.
    if (!isFirst.current) main.current?.focus();
    isFirst.current = false;
    scrollTo(0, 0);
  }, [path]);
  const route = routeOf(address);
  // Set the title before the page's effects, which may set a better one.
  useLayoutEffect(() => {
    document.title = [route?.title, "tunefarm"].filter(Boolean).join(" · ");
  }, [path]);
  const signOut = () => call("DELETE", "v1/session").then(() => setSession(null), look);
  // A page sends its requests before the session is known. Elements that need a scope appear with the
  // session.
  let content = null;
  if (session === null) content = html`<${SignIn} onDone=${look} />`;
  else if (session?.problem) content = html`<p class="alert" role="alert">${session.problem.message}</p>`;
  else if (!route) content = html`<h1>Page not found</h1><p><a href="#/jobs">Go to the jobs</a></p>`;
  else content = html`<${route.page} key=${path} ...${route.given} scopes=${session?.scopes ?? []} who=${session?.who} />`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the content</a>
    <header>
      <a class="brand" href="#/"><span aria-hidden="true">◭</span> tunefarm</a>
      ${session && !isReport && html`<${Menu} address=${address} scopes=${session.scopes ?? []} />`}
      <${Corner} session=${session} signOut=${signOut} />
    </header>
    <main id="main" ref=${main} tabindex="-1">${content}</main>
  `;
}

function Menu({ address, scopes }) {
  const [here] = address.split(/[/?]/);
  return html`<nav aria-label="Pages">
    ${ROUTES.filter(({ title, scope }) => title && (!scope || scopes.includes(scope))).map(
      ({ path, title }) => html`<a href=${`#/${path}`} aria-current=${path === here ? "page" : undefined}>${title}</a>`,
    )}
  </nav>`;
}

function Corner({ session, signOut }) {
  const { theme, next } = useTheme();
  const canSignOut = session?.who && !["loopback", "report"].includes(session.who);
  return html`<div class="corner">
    <button type="button" class="quiet" onClick=${next} aria-label=${`Colours: ${theme}`} title=${`Colours: ${theme}`}>
      <span aria-hidden="true">${{ auto: "◐", light: "☀", dark: "☾" }[theme]}</span>
    </button>
    ${canSignOut && html`<button type="button" class="quiet" onClick=${signOut}>Sign out</button>`}
  </div>`;
}

const root = document.getElementById("app");
keepFocus(root);
render(html`<${App} />`, root);
