// The form that asks for a token. The browser keeps it in a cookie that no script can read.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { call } from "tunefarm/api.js";
import { html } from "tunefarm/html.js";
import { Alert } from "tunefarm/pages/parts.js";

export function SignIn({ onDone }) {
  const [problem, setProblem] = useState(null);
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  const signIn = async (event) => {
    event.preventDefault();
    const token = new FormData(event.target).get("token").trim();
    setProblem(null);
    try {
      if (!/^[\x21-\x7e]+( +[\x21-\x7e]+)*$/.test(token)) throw new Error("a token has only letters, digits and signs of ASCII");
      await call("POST", "v1/session", undefined, { Authorization: `Bearer ${token}` });
      onDone();
    } catch (refused) {
      setProblem(refused);
    }
  };
  return html`<form class="card sign-in" onSubmit=${signIn}>
    <h1>Sign in</h1>
    <p>This service needs a token with the scope <code>read</code>; with <code>submit</code> you can start jobs.</p>
    <label>Token <input name="token" type="password" autocomplete="current-password" required ref=${field} /></label>
    ${problem && html`<${Alert} problem=${problem} />`}
    <button class="main">Sign in</button>
    <p class="muted">An administrator makes one with <code>tunefarm token create --name NAME --scope read --scope submit</code>.</p>
  </form>`;
}
