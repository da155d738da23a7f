// Keep the focus on the page (WCAG 2.4.3): if the element with the focus disappears, move it to the nearest place.

const CONTROLS = "a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), textarea:not(:disabled), summary";
// The parts of a page that get the focus if no control is left beside the lost one.
const PLACES = "tr, table, section, form, details, main";

// Watch the elements below `root`.
export function keepFocus(root) {
  let held = null;
  root.addEventListener("focusin", (event) => (held = event.target));
  root.addEventListener("focusout", ({ target }) =>
    // A user who leaves an element for no other doesn't want the focus back. An element that disappears is gone by then.
    setTimeout(() => {
      if (held === target && target.isConnected && document.activeElement !== target) held = null;
    }),
  );
  new MutationObserver((changes) => {
    if (held === null || held.isConnected || document.activeElement !== document.body) return;
    const place = nearest(held, changes) ?? root.querySelector("main");
    held = null;
    if (!place.matches(CONTROLS) && !place.hasAttribute("tabindex")) place.tabIndex = -1;
    place.focus({ preventScroll: true });
  }).observe(root, { childList: true, subtree: true });
}

// The element to move the focus to from one that is `lost` by the changes of a page.
function nearest(lost, changes) {
  let change = null;
  for (let inner = lost; !inner.isConnected; inner = change.target) {
    change = changes.find(({ removedNodes }) => [...removedNodes].some((node) => node.contains(inner)));
    if (!change) return null;
  }
  const parent = change.target;
  const beside = parent.matches(`${PLACES}, tbody`) ? null : parent.querySelector(CONTROLS);
  if (beside) return beside;
  const [row] = [change.nextSibling, change.previousSibling].filter((one) => one?.isConnected && one.matches?.("tr"));
  const before = change.previousSibling;
  const last = before?.isConnected && before.matches?.("table") ? before.querySelector("tbody tr:last-child") : null;
  return row ?? last ?? parent.closest(PLACES);
}
