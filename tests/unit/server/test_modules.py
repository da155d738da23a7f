"""Modules become one, and what can't be joined is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from graphlib import CycleError
from pathlib import Path

import pytest

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


def test_it_does_what_they_did(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed: apt-get install nodejs")
    (tmp_path / "library.mjs").write_text(LIBRARY)
    script = joined(MODULES, ["library"]).replace('"library"', '"./library.mjs"')
    (tmp_path / "app.mjs").write_text(script)
    ran = subprocess.run([node, tmp_path / "app.mjs"], capture_output=True, text=True)
    assert ran.stdout == "<aa>!\n", ran.stderr


@pytest.mark.parametrize(
    "line",
    ['import "ours/b.js";', 'import * as all from "ours/b.js";', "export default 1;", "export { one };"],
)
def test_other_forms_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        joined({"ours/a.js": f"{line}\n", "ours/b.js": "export const one = 1;\n"}, [])


def test_circles_are_refused() -> None:
    modules = {name: f'import {{ x }} from "{other}";\n' for name, other in (("a", "b"), ("b", "a"))}
    with pytest.raises(CycleError):
        joined(modules, [])
