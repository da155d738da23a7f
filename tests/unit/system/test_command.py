"""Commands end with one line on standard error and an exit code."""

from __future__ import annotations

import pytest
import typer

from core.exit_code import ExitCode
from system.command import CommandError, run_command, run_function
from system.errors import SettingsError


def command(cause: str = "none", number: int = 0) -> int:
    errors: dict[str, BaseException] = {
        "command": CommandError("no\n  luck", ExitCode.LOCAL),
        "settings": SettingsError("the setting x is missing"),
        "interrupt": KeyboardInterrupt(),
        "other": ZeroDivisionError(),
    }
    if cause in errors:
        raise errors[cause]
    return number


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--cause", "command"], ExitCode.LOCAL, "my command: no luck"),
        (["--cause", "settings"], ExitCode.USAGE, "my command: the setting x is missing"),
        (["--cause", "interrupt"], ExitCode.INTERRUPTED, "my command: interrupted"),
        (["--colour"], ExitCode.USAGE, "my command: No such option: --colour (see my command --help)"),
    ],
)
def test_a_failed_command_prints_one_line_and_returns_an_exit_code(
    arguments: list[str], code: ExitCode, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_function(command, "my command", arguments) == code
    assert capsys.readouterr().err.splitlines() == [line]


def test_wrong_usage_of_a_subcommand_points_to_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer(add_completion=False)
    app.command("first")(command)
    app.command("second")(command)
    assert run_command(app, "mine", ["second", "--colour"]) == ExitCode.USAGE
    assert run_command(app, "mine", ["third"]) == ExitCode.USAGE
    inner, outer = capsys.readouterr().err.splitlines()
    assert inner == "mine: No such option: --colour (see mine second --help)"
    assert outer.endswith("(see mine --help)")


@pytest.mark.parametrize("number", [0, 1])
def test_the_returned_number_is_the_exit_code(number: int) -> None:
    assert run_function(command, "my command", ["--number", str(number)]) == number


def test_other_exceptions_propagate() -> None:
    with pytest.raises(ZeroDivisionError):
        run_function(command, "my command", ["--cause", "other"])
