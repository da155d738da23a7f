"""Untrusted traces are tried in a child process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from compiler.children.traces import ReplayLimits, check_traces
from compiler.workload import to_json
from tests.workloads import matmul

TARGET = '{"kind":"llvm","num-cores":2}'
UNSCHEDULED = "[[],[]]"
MISSING_BLOCK = '[[["GetSBlock",[],["no","main"],["b0"]]],[]]'
# Replaces the child, and dies as the trace says.
ACTOR = """
import json, os, signal, sys, time
for _, trace in json.load(sys.stdin)["pairs"]:
    if trace == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if trace == "exit":
        sys.exit(3)
    if trace == "hang":
        time.sleep(600)
    print(json.dumps({"problem": ""}), flush=True)
"""


def test_good_traces_pass_and_others_have_a_reason() -> None:
    workload = to_json(matmul(8, 8, 8))
    traces = [UNSCHEDULED, "no trace", MISSING_BLOCK, UNSCHEDULED]
    good, wrong, missing, again = check_traces([(workload, trace) for trace in traces], TARGET)
    assert (good, again) == ("", "")
    assert wrong
    assert missing


def test_without_traces_no_child_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert check_traces([], TARGET) == []


def test_no_trace_passes_with_too_little_memory() -> None:
    [problem] = check_traces(
        [(to_json(matmul(8, 8, 8)), UNSCHEDULED)], TARGET, ReplayLimits(memory_bytes=16 << 20)
    )
    assert problem.startswith(
        ("it crashed the compiler", "it ended the compiler", "it takes too much memory")
    )


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "actor.py").write_text(ACTOR)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'actor.py'}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.usefixtures("actor")
@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("crash", "it crashed the compiler (SIGSEGV)"),
        ("exit", "it ended the compiler (exit status 3)"),
    ],
)
def test_a_trace_that_kills_the_child_fails_no_other(fault: str, problem: str) -> None:
    pairs = [("", trace) for trace in ("good", fault, "good", fault, "good")]
    assert check_traces(pairs, TARGET) == ["", problem, "", problem, ""]


@pytest.mark.usefixtures("actor")
def test_a_trace_that_never_ends_is_killed() -> None:
    began = time.monotonic()
    limits = ReplayLimits(start_s=2.0, each_s=0.1)
    assert check_traces([("", "good"), ("", "hang"), ("", "good")], TARGET, limits) == [
        "",
        "compiling it takes too long",
        "",
    ]
    assert time.monotonic() - began < 60
