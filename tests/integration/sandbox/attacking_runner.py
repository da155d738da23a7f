"""A runner whose candidates have compromised the child."""

from __future__ import annotations

import json
from collections.abc import Mapping

from core.measurement import Measurement, Outcome
from tests.integration.sandbox import attacker
from tests.integration.worker.fault_runner import FaultRunner
from worker.runner.interface import BuildRequest, Notify


class AttackingRunner(FaultRunner):
    def build(self, requests: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> list[int]:
        refused = []
        for number, request in requests.items():
            begun(number)
            told = json.loads(request.module_json)
            failure = Measurement(Outcome.BUILD_ERROR, error=json.dumps(attacker.report(told)))
            self._built[number] = request, failure
            refused.append(number)
            ended(number)
        return refused
