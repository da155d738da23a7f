"""A child inherits the variables that it needs, and no secrets."""

from __future__ import annotations

import pytest

from sandbox.environment import allowed_variables


@pytest.mark.parametrize("name", ["PATH", "LC_ALL", "PYTHONPATH", "TVM_NUM_THREADS", "CUDA_VISIBLE_DEVICES"])
def test_programs_and_libraries_are_found(name: str) -> None:
    assert allowed_variables({name: "value"}) == {name: "value"}


@pytest.mark.parametrize("name", ["TUNEFARM_DATABASE_URL", "TUNEFARM_WORKER_TOKEN", "AWS_SECRET_ACCESS_KEY"])
def test_secrets_are_not_inherited(name: str) -> None:
    assert allowed_variables({name: "value", "PATH": "/bin"}) == {"PATH": "/bin"}
