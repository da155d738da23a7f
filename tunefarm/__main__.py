"""The entry point of the `tunefarm` command. If only the client library is installed, it says what is
missing."""

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
