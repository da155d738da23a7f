// Templates: html`<p class="x">${text}</p>` makes elements of Preact, which escapes whatever is put in.
import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
