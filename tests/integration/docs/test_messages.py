"""The page of messages has what the product says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from core.exit_code import ExitCode
from docs.site import messages
from tests.document_commands import ROOT, application
from tunefarm.cli.app import app, run

# The fewest words of a message that tell it from others.
FEWEST_WORDS = 3
# PostgreSQL's own words, which a message of ours has in brackets.
OF_OTHERS = {"password authentication failed"}


def is_listed(said: str) -> bool:
    """Return whether a message on the page fits, or is a part of, what was said."""
    said = said.replace("`", "'")
    for texts in messages.messages().values():
        for text in texts:
            words = [word for word in text.split() if "…" not in word]
            pattern = ".+".join(re.escape(part.strip()) for part in text.split("…"))
            if len(words) >= FEWEST_WORDS and re.search(pattern, said):
                return True
    return False


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["tune", "missing.onnx"], ExitCode.BAD_INPUT),
        (["tune", "photo.onnx", "--shape", "x"], ExitCode.USAGE),
        (["jobs", "--server", "http://127.0.0.1:1"], ExitCode.UNREACHABLE),
        (["bench", "nowhere"], ExitCode.BAD_INPUT),
        (["token", "create", "--name", "a", "--scope", "read", "--expires", "soon"], ExitCode.USAGE),
        (["check", "JOB", "--baseline", "x", "--max-regression", "much"], ExitCode.USAGE),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_message_of_a_command_is_on_the_page(
    arguments: list[str],
    code: ExitCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.onnx").write_bytes(b"no model")
    assert run(app, arguments) == code
    said = " ".join(capsys.readouterr().err.split())
    assert is_listed(said), said


@pytest.mark.parametrize("path", ["/v1/jobs?before=none", "/v1/schedules/best?workload=x&target=y"])
def test_an_answer_of_the_service_is_on_the_page(path: str) -> None:
    answer = TestClient(application(), base_url="http://127.0.0.1:8760").get(path)
    assert answer.status_code >= 400
    assert is_listed(answer.json()["detail"]), answer.text


def test_the_troubleshooting_page_quotes_real_messages() -> None:
    quoted = re.findall(r"^- `([^`]+)`", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    listed = "\n".join(text for texts in messages.messages().values() for text in texts)
    assert set(quoted) >= OF_OTHERS
    for text in set(quoted) - OF_OTHERS:
        parts = [part.strip(" …()") for part in re.split(r"…|[():]|\d+%?", text)]
        assert all(part in listed for part in parts), text


def test_messages_in_every_form_are_found() -> None:
    listed = [text for texts in messages.messages().values() for text in texts]
    assert len(listed) > 800
    for text in (
        "needs root: run this script with sudo",  # of the shell script
        "it could not be tuned: …",  # logged
        "not calibrated, an ordinary core is assumed",  # returned
    ):
        assert any(text in one for one in listed), text
