"""JavaScript modules that are bundled into one work as before in a browser."""

from __future__ import annotations

from urllib.parse import quote

from playwright.sync_api import Page

from server.dashboard.modules import joined

LIBRARY = "export default (text) => `<${text}>`;\nexport const twice = (text) => text + text;\n"
MODULES = {
    "ours/app.js": """import { name } from "ours/name.js";
import { show } from "ours/show.js";
console.log(show(name));
""",
    "ours/show.js": """import wrap from "library";
import { twice } from "library";
// Another module has a constant of this name.
const hidden = "!";
export function show(text) {
  return wrap(twice(text)) + hidden;
}
""",
    "ours/name.js": """const hidden = "a";
export const name = hidden;
""",
}


def test_joined_modules_behave_like_separate_modules(page: Page) -> None:
    library = f'"data:text/javascript,{quote(LIBRARY)}"'
    script = joined(MODULES, ["library"]).replace('"library"', library)
    with page.expect_console_message() as message:
        page.add_script_tag(content=script, type="module")
    assert message.value.text == "<aa>!"
