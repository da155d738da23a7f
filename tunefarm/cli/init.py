"""`tunefarm init`: write a settings file in which every line is a comment."""

from __future__ import annotations

import json
from typing import Any

from core.exit_code import ExitCode
from system.command import CommandError
from system.new_file import new_file
from tunefarm.cli.options import AsJson, print_json, print_plain
from tunefarm.settings import CommandSettings, config_file

_HEAD = """\
# Settings of the tunefarm command. Flags and TUNEFARM_* variables come before them.
# Remove the # in front of a setting to change it.
"""


def init(as_json: AsJson = False) -> None:
    """Write a file of settings with a comment on each."""
    path = config_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise CommandError(f"{path} is there already: edit it, or move it away", ExitCode.LOCAL)
        # The file may hold a token: only its owner may read it.
        with new_file(path, 0o600) as file:
            file.write(config_text().encode())
    except OSError as error:
        cause = error.strerror or error
        raise CommandError(
            f"can't write {path} ({cause}): set TUNEFARM_CONFIG to another file", ExitCode.LOCAL
        ) from error
    if as_json:
        print_json({"config": str(path)})
    else:
        print_plain(f"{path} has every setting as a comment: edit it")


def config_text() -> str:
    """Return a TOML file in which every setting is a comment, with its default or an example."""
    parts = [_HEAD]
    for name, field in CommandSettings.model_fields.items():
        value: Any = field.get_default(call_default_factory=True)
        if value is None and field.examples:
            value = field.examples[0]
        text = str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)
        parts.append(f"# {field.description}\n# {name} = {text}\n")
    return "\n".join(parts)
