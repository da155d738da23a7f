// Hooks that pages share: refreshed answers, a job's events, the theme.
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { get, isReport, watchJob } from "tunefarm/api.js";

// The answer to GET `path`, refreshed every `everyS` seconds while the page is visible (0: never). Returns {
// value, problem, refresh }; `value` is the last good answer, undefined before the first. With a null path,
// no request is sent.
export function useAnswer(path, everyS = 0) {
  const [answer, setAnswer] = useState({ path });
  const [turn, setTurn] = useState(0);
  // Send the request before the browser paints.
  useLayoutEffect(() => {
    if (path === null) return undefined;
    let isCurrent = true;
    const ask = async () => {
      try {
        const value = await get(path);
        if (isCurrent) setAnswer({ path, value });
      } catch (problem) {
        if (isCurrent) setAnswer((last) => ({ path, value: last.path === path ? last.value : undefined, problem }));
      }
    };
    ask();
    const timer = everyS && !isReport ? setInterval(() => document.hidden || ask(), everyS * 1e3) : 0;
    return () => {
      isCurrent = false;
      clearInterval(timer);
    };
  }, [path, everyS, turn]);
  const refresh = useCallback(() => setTurn((last) => last + 1), []);
  const { value, problem } = answer.path === path ? answer : {};
  return { value, problem, refresh };
}

// The answers to GET for several paths, returned together: { value, problem }. While `isRunning` of the last
// value, they are requested again every `everyS` seconds.
export function useAnswers(paths, isRunning, everyS) {
  const key = paths.join(" ");
  const [answer, setAnswer] = useState({ key });
  useLayoutEffect(() => {
    let isCurrent = true;
    let timer = 0;
    const ask = async () => {
      let isLast = false;
      try {
        const value = await Promise.all(paths.map(get));
        isLast = !isRunning(value);
        if (isCurrent) setAnswer({ key, value });
      } catch (problem) {
        if (isCurrent) setAnswer((last) => ({ key, value: last.key === key ? last.value : undefined, problem }));
      }
      if (isCurrent && !isLast) timer = setTimeout(again, everyS * 1e3);
    };
    const again = () => (document.hidden ? (timer = setTimeout(again, everyS * 1e3)) : ask());
    ask();
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [key]);
  return answer.key === key ? answer : {};
}

// The same limit as in the style sheet.
const PHONE = matchMedia("(max-width: 720px)");

// Whether the page is as narrow as a phone.
export function useNarrow() {
  const [isNarrow, setNarrow] = useState(PHONE.matches);
  useEffect(() => {
    const follow = () => setNarrow(PHONE.matches);
    PHONE.addEventListener("change", follow);
    return () => PHONE.removeEventListener("change", follow);
  }, []);
  return isNarrow;
}

// Call `onChange` after a job's events, at most every `everyS` seconds.
export function useJobEvents(job, onChange, everyS = 1) {
  const callback = useRef(onChange);
  callback.current = onChange;
  const isWatched = Boolean(job) && !job.finished;
  useEffect(() => {
    if (!isWatched) return undefined;
    let timer = 0;
    const stop = watchJob(job.id, () => {
      if (timer) return;
      timer = setTimeout(() => {
        timer = 0;
        if (!document.hidden) callback.current();
      }, everyS * 1e3);
    });
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [job?.id, isWatched]);
}

// Parts of a page that wait for their turn, in the order of the page.
const waiting = [];
const whenIdle = globalThis.requestIdleCallback ?? ((act) => setTimeout(act, 1));

function takeTurn() {
  waiting.shift()?.();
  if (waiting.length) whenIdle(takeTurn, { timeout: TURN_MS });
}

// The longest that a part of a page waits for a busy browser.
const TURN_MS = 200;

// Whether a part of a page may be drawn. Parts are drawn one after the other when the browser has nothing else to do, so
// that the page answers to its user meanwhile.
export function useTurn() {
  const [isDue, setDue] = useState(false);
  useEffect(() => {
    const take = () => setDue(true);
    waiting.push(take);
    if (waiting.length === 1) whenIdle(takeTurn, { timeout: TURN_MS });
    return () => {
      const at = waiting.indexOf(take);
      if (at >= 0) waiting.splice(at, 1);
    };
  }, []);
  return isDue;
}

// A form that a button opens, and Escape closes: { isOpen, setOpen, form, button, onKeyDown }, where `form` and `button`
// are refs. The focus moves into the form when it opens, and back to the button when it closes.
export function useForm() {
  const [isOpen, setOpen] = useState(false);
  const [form, button, wasOpen] = [useRef(null), useRef(null), useRef(false)];
  useLayoutEffect(() => {
    if (isOpen) form.current.elements[0].focus();
    else if (wasOpen.current) button.current?.focus();
    wasOpen.current = isOpen;
  }, [isOpen]);
  const onKeyDown = (event) => event.key === "Escape" && setOpen(false);
  return { isOpen, setOpen, form, button, onKeyDown };
}

// Set the browser tab's title once the page knows it.
export function useTitle(title) {
  useEffect(() => {
    if (title) document.title = `${title} · tunefarm`;
  }, [title]);
}

const THEMES = ["auto", "light", "dark"];
const listeners = new Set();
let theme = THEMES.find((one) => one === readTheme()) ?? "auto";
document.documentElement.dataset.theme = theme;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => listeners.forEach((tell) => tell({})));

// A report opened from a file may have no storage.
function readTheme() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

// The theme (auto, light or dark), a function that selects the next one, and a value that changes with the
// colours.
export function useTheme() {
  const [colours, tell] = useState({});
  useEffect(() => {
    listeners.add(tell);
    return () => listeners.delete(tell);
  }, []);
  const next = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // Without storage, the choice lasts until the page is closed.
    }
    listeners.forEach((one) => one({}));
  };
  return { theme, next, colours };
}
