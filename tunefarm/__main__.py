"""The `tunefarm` command's entry, which says what is missing where only the client library is installed."""

import sys

_NEEDED = ("pydantic", "pydantic_settings", "rich", "typer")


def main() -> None:
    try:
        from tunefarm.cli import app
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        sys.exit(f"tunefarm: the command needs {error.name}: install it with pip install 'tunefarm[cli]'")
    app.main()


if __name__ == "__main__":
    main()
