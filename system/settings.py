"""Read the settings of a process, and report wrong settings in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from system.errors import SettingsError

S = TypeVar("S", bound=BaseSettings)


def read_settings(kind: type[S], flags: Mapping[str, object], file: Path | None = None) -> S:
    """Read settings: flags over environment over the class's other sources.

    `flags` holds the settings with flags; a flag that wasn't given is None. `file` is the class's settings
    file, which messages name. Raises SettingsError, which names every wrong setting.
    """
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    try:
        return kind(**given)
    except ValidationError as error:
        raise SettingsError(
            "; ".join(_problem(part, kind, flags, file) for part in error.errors())
        ) from error


def _problem(
    part: Mapping[str, Any], kind: type[BaseSettings], flags: Mapping[str, object], file: Path | None
) -> str:
    prefix = kind.model_config.get("env_prefix", "")
    message: str = part["msg"].removeprefix("Value error, ")
    if not part["loc"]:
        return message  # an error about several settings; its input contains secrets
    name = str(part["loc"][0]).lower().removeprefix(prefix.lower())
    places = [f"--{name.replace('_', '-')}"] if name in flags else []
    places.append(f"{prefix}{name}".upper())
    if file is not None:
        places.append(str(file))
    where = " or ".join(filter(None, (", ".join(places[:-1]), places[-1])))
    if part["type"] == "missing":
        return f"the setting {name} is missing: give it by {where}"
    is_secret = name in kind.model_fields and "SecretStr" in str(kind.model_fields[name].annotation)
    value = "" if is_secret else f", not {part['input']!r}"
    return f"the setting {name} is wrong: {message}{value} (it comes from {where})"
