// Templates: html`<p class="x">${text}</p>` makes Preact elements. Preact escapes all values.
import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
