"""Join the dashboard's modules into one, because nearly twenty requests would take a browser long.

The modules aren't parsed. They have each import on one line, and each export before a declaration. So a
module is rewritten as a function that returns its exports.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter

_NAMES = r"\{ \w+(?:, \w+)* \}"
_IMPORT = re.compile(rf'^import (?:(?P<default>\w+)|(?P<names>{_NAMES})) from "(?P<module>[^"]+)";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.M)
_OTHERWISE = re.compile(r"^(?:import|export)\b.*", re.M)


def joined(modules: Mapping[str, str], libraries: Collection[str]) -> str:
    """Return one module with all `modules`: their sources, by the names in their imports. The module imports
    `libraries` itself.

    Raises ValueError for an import or an export in another form and for a circle, KeyError for an import of
    anything else.
    """
    imported = {name: {found["module"] for found in _IMPORT.finditer(text)} for name, text in modules.items()}
    order = [name for name in TopologicalSorter(imported).static_order() if name not in libraries]
    variables = {name: f"module{number}" for number, name in enumerate([*libraries, *order])}

    def declared(found: re.Match[str]) -> str:
        names = found["names"] or f"{{ default: {found['default']} }}"
        return f"const {names} = {variables[found['module']]};"

    parts = [f'import * as {variables[name]} from "{name}";' for name in libraries]
    for name in order:
        exports = ", ".join(_EXPORT.findall(modules[name]))
        text = _EXPORT.sub("", _IMPORT.sub(declared, modules[name]))
        if left := _OTHERWISE.search(text):
            raise ValueError(f"{name} has an import or an export in another form: {left[0]}")
        parts.append(f"// {name}\nconst {variables[name]} = (() => {{\n{text}return {{ {exports} }};\n}})();")
    return "\n".join(parts)
