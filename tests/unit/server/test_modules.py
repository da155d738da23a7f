"""Modules that can't be bundled are rejected. tests/integration/dashboard tests bundling."""

from __future__ import annotations

import re
from graphlib import CycleError

import pytest

from server.dashboard.modules import joined


@pytest.mark.parametrize(
    "line",
    [
        *('import "ours/b.js";', 'import * as all from "ours/b.js";'),
        *('import { one as two } from "ours/b.js";', "export default 1;", "export { one };"),
    ],
)
def test_unsupported_import_forms_are_rejected(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        joined({"ours/a.js": f"{line}\n", "ours/b.js": "export const one = 1;\n"}, [])


def test_import_cycles_are_rejected() -> None:
    modules = {name: f'import {{ x }} from "{other}";\n' for name, other in (("a", "b"), ("b", "a"))}
    with pytest.raises(CycleError):
        joined(modules, [])
