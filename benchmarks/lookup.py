"""Put load on one server: look-ups of best schedules, and a long queue of jobs.

    python -m benchmarks.lookup --json FILE

The server, the database and the load generator share this machine. The database has a million records of ten
thousand workloads. The fastest record of each workload, which look-ups read, has a trace as long as a real
one. The traces of the others are short. Every request carries a token with the scope `read`.

One of the jobs has ten thousand trials of twenty subgraphs. Chromium opens its page on the same machine, each
time with an empty cache, until all charts are painted and the page is idle.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import httpx
from sqlalchemy import text

from benchmarks import http_load, page_load
from benchmarks.arguments import command_parser, positive
from benchmarks.http_load import LoadStats
from benchmarks.page_load import PageLoadError
from benchmarks.results.figures import Figure, at_least, at_most, figure
from benchmarks.results.output import Output
from benchmarks.scale import CORES, Backends, ScaleError, Service, fill, serving, trace
from benchmarks.simulated_workers import simulated_device
from core.profile import assumed_profile
from records import devices
from records.jobs import jobs
from records.schedules import schedules
from records.storage.database import Database
from tests import services

RECORDS, QUICK_RECORDS = 1_000_000, 20_000
RECORDS_EACH = 100
JOBS, QUICK_JOBS = 10_000, 600
JOB_TRIALS, QUICK_JOB_TRIALS = 10_000, 500
NETWORK = 30
CONNECTIONS = 16
DATABASES = ("PostgreSQL", "SQLite")
# Look-ups whose responses the client has already.
HELD = 500
SUBMITTED = 500
LOOK_UPS_AIM, LOOK_UP_AIM_MS, HELD_AIM, NETWORK_AIM_MS = 2000.0, 20.0, 4000.0, 30.0
SUBMIT_AIM_MS, ANSWER_AIM_MS = 50.0, 200.0
INTERACTIVE_AIM_MS, WEIGHT_AIM_KB = 500.0, 500.0
SUBGRAPHS = 20
VISITS = 10
# The condition for a job's page: three charts of its trials, the roofline, and the tree maps of time are
# drawn.
DRAWN = """document.querySelectorAll("canvas").length >= 4
  && document.querySelectorAll(".treemap a").length > 1"""
SECRET = "the benchmark's bootstrap token"


@dataclass(frozen=True)
class Size:
    """The numbers of records, queued jobs and trials of one job, and the seconds of each load."""

    records: int
    jobs: int
    trials: int
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    output = Output("benchmarks.lookup", argv, args.json, CORES)
    size = Size(
        args.records or (QUICK_RECORDS if args.quick else RECORDS),
        QUICK_JOBS if args.quick else JOBS,
        QUICK_JOB_TRIALS if args.quick else JOB_TRIALS,
        args.seconds,
    )
    try:
        found = measure(size, args.database or DATABASES)
    except (ScaleError, PageLoadError, services.Missing) as error:
        output.fail(error)
        return 1
    output.finish(found)
    return 0


def measure(size: Size, on: Collection[str] = DATABASES) -> list[Figure]:
    """Return the figures for some of DATABASES. Raises ScaleError, Missing."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as name, services.postgresql(durable=True) as postgresql:
        folder = Path(name)

        def settle() -> None:
            postgresql.settle("lookup")

        pids = {"PostgreSQL": postgresql.pid}
        of_postgresql = Backends(postgresql.create("lookup"), str(folder / "broker"), pids, settle)
        of_sqlite = Backends(f"sqlite:///{folder}/lookup.db", str(folder / "broker"), {}, lambda: None)
        for database, backends in zip(DATABASES, (of_postgresql, of_sqlite), strict=True):
            if database not in on:
                continue
            _say(f"{database}: {size.records} records are stored")
            workloads = _fill_records(backends, size.records)
            with _serving_with_token(backends, folder) as (service, token):
                found += _look_up(database, size, service, token, workloads)
                found += _queue(database, size, backends, service, token)
    return found


def _look_up(
    database: str, size: Size, service: Service, token: str, workloads: Sequence[str]
) -> list[Figure]:
    draw = random.Random(0)
    key = simulated_device(0).key

    def address(workload: str) -> str:
        return f"{service.http}/v1/schedules/best?workload={workload}&target={key}"

    asked = [http_load.request("GET", address(name), token) for name in draw.choices(workloads, k=10_000)]
    held = []
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        for name in draw.choices(workloads, k=HELD):
            tag = client.get(address(name)).raise_for_status().headers["etag"]
            held.append(http_load.request("GET", address(name), token, If_None_Match=tag))
    networks = []
    for _ in range(200):
        body = json.dumps({"target": key, "workloads": draw.sample(list(workloads), NETWORK)}).encode()
        networks.append(http_load.request("POST", f"{service.http}/v1/schedules:query", token, body))
    _say(f"{database}: look-ups")
    plain = _expect(200, http_load.load(service.http, asked, CONNECTIONS, size.seconds))
    current = _expect(304, http_load.load(service.http, held, CONNECTIONS, size.seconds))
    whole = _expect(200, http_load.load(service.http, networks, 1, size.seconds))
    alone = _expect(200, http_load.load(service.http, asked, 1, size.seconds))
    one = f"one connection: {1e3 * alone.percentile_s(50):.2g} ms (median)"
    of = f"{database}, {size.records} records"
    rate, rate_304 = at_least(LOOK_UPS_AIM), at_least(HELD_AIM)
    return [
        figure("look-ups", plain.a_second, "/s", condition=of, aim=rate),
        figure("look-up, p99", _ms(plain), "ms", condition=of, aim=at_most(LOOK_UP_AIM_MS), note=one),
        figure("look-ups answered by 304", current.a_second, "/s", condition=of, aim=rate_304),
        figure(
            f"look-up of {NETWORK} workloads, p99",
            _ms(whole),
            "ms",
            condition=of,
            aim=at_most(NETWORK_AIM_MS),
        ),
    ]


def _queue(database: str, size: Size, backends: Backends, service: Service, token: str) -> list[Figure]:
    """Queue jobs, one of them with many trials. Time the submission of further jobs and the reading of
    pages."""
    _say(f"{database}: {size.jobs} jobs are queued")
    busy = _fill_job(backends, size.trials)
    path_of_job = f"/v1/jobs/{quote(busy)}"
    with httpx.Client(headers={"Authorization": f"Bearer {SECRET}"}, trust_env=False) as client:
        model = client.get(f"{service.http}{path_of_job}").raise_for_status().json()["model"]
    body = json.dumps({"model": model, "trials": 100}).encode()
    submit = http_load.request("POST", f"{service.http}/v1/jobs", SECRET, body)
    _expect(202, http_load.once(service.http, [submit] * (size.jobs - SUBMITTED), CONNECTIONS))
    last = _expect(202, http_load.once(service.http, [submit] * SUBMITTED, 1))
    of = f"{database}, {size.jobs} jobs"
    found = [
        figure("submitting a job, p99", _ms(last), "ms", condition=of, aim=at_most(SUBMIT_AIM_MS)),
    ]
    of_job = f"the job with {size.trials} trials"
    pages = {
        "the first page of jobs": "/v1/jobs",
        "workers": "/v1/workers",
        "metrics": "/metrics",
        of_job: path_of_job,
        f"the tasks of {of_job}": f"{path_of_job}/tasks",
        f"the trials of {of_job}": f"{path_of_job}/trials",
        "the best schedules": f"/v1/schedules?target={simulated_device(0).key}&words=conv",
        "the dashboard's document": "/",
    }
    for name, path in pages.items():
        asked = http_load.request("GET", f"{service.http}{path}", token)
        seen = _expect(200, http_load.load(service.http, [asked], 1, min(size.seconds, 3.0)))
        found.append(figure(f"{name}, p99", _ms(seen), "ms", condition=of, aim=at_most(ANSWER_AIM_MS)))
    url = f"{service.http}/#/jobs/{quote(busy)}"
    with page_load.chromium() as browser:
        visits = [page_load.load_page(browser, url, token, DRAWN) for _ in range(VISITS)]
    taken_ms = sorted(1e3 * visit.interactive_s for visit in visits)
    _say(f"  the page of {of_job}: {', '.join(f'{ms:.0f}' for ms in taken_ms)} ms")
    return [
        *found,
        figure(
            f"time until the page of {of_job} is interactive",
            statistics.median(taken_ms),
            "ms",
            condition=of,
            aim=at_most(INTERACTIVE_AIM_MS),
            note=f"slowest of {VISITS} first visits: {taken_ms[-1]:.3g} ms",
        ),
        figure(
            f"data received by the page of {of_job}",
            max(visit.num_bytes for visit in visits) / 1e3,
            "kB",
            condition=of,
            aim=at_most(WEIGHT_AIM_KB),
        ),
    ]


def _expect(status: int, seen: LoadStats) -> LoadStats:
    """Raise ScaleError if any response has another status, or if there were too few responses."""
    if set(seen.statuses) != {status}:
        raise ScaleError(f"answers were {dict(seen.statuses)}, not {status}")
    if len(seen.answer_s) < 2:
        raise ScaleError("hardly anything was answered: measure for longer")
    _say(f"  {seen.a_second:.0f} /s, p99 {_ms(seen):.1f} ms")
    return seen


def _ms(seen: LoadStats) -> float:
    return 1e3 * seen.percentile_s(99)


@contextlib.contextmanager
def _serving_with_token(backends: Backends, folder: Path) -> Iterator[tuple[Service, str]]:
    """Run a server that requires tokens. Yield it and a token with the scope `read`."""
    with serving(backends, folder, TUNEFARM_TOKEN=SECRET) as service:
        body = {"name": "look-ups", "scopes": ["read"], "expires_after_s": None}
        headers = {"Authorization": f"Bearer {SECRET}"}
        made = httpx.post(f"{service.http}/v1/tokens", json=body, headers=headers, trust_env=False)
        yield service, made.raise_for_status().json()["token"]


def _fill_records(backends: Backends, number: int) -> list[str]:
    """Store `number` records of one device class. Return the hashes of their workloads."""
    workloads = number // RECORDS_EACH
    device = simulated_device(0)
    database = Database(backends.database_url)
    database.migrate()
    long, short = trace(0), trace(0)[:300]
    series = {
        "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n + 1 < :number)"
        " SELECT n FROM s)",
        "postgresql": "generate_series(0, :number - 1) AS s(n)",
    }
    with database.begin() as session:
        devices.put_class(session, device)
        of_dialect = series[session.get_bind().dialect.name]
        names = f"SELECT 'w' || n, '{{}}' FROM {of_dialect}"
        session.execute(text(f"INSERT INTO workloads (hash, module_json) {names}"), {"number": workloads})
        session.execute(
            text(
                "INSERT INTO records (workload_hash, device_class, trace, trace_sha, latency_s, run_s,"
                " outcome, target, source, created_at) "
                "SELECT 'w' || (n % :workloads), :key, CASE WHEN n < :workloads THEN :long ELSE :short END,"
                " 'sha' || n, 1e-5 * (1 + n / :workloads), '[1e-5, 1.1e-5, 1.2e-5]',"
                " 'ok', :target, 'trial', 0.0 "
                f"FROM {of_dialect}"
            ),
            {"number": number, "workloads": workloads, "key": device.key, "long": long, "short": short}
            | {"target": device.target},
        )
    database.close()
    backends.settle()
    return [f"w{n}" for n in range(workloads)]


def _fill_job(backends: Backends, trials: int) -> str:
    """Create a tuning job with `trials` finished trials, a few of them failed. Return its id."""
    database = Database(backends.database_url)
    try:
        (made,) = fill(database, 1, trials, SUBGRAPHS)
        device = simulated_device(0)
        profile = assumed_profile(device.arch, device.features, device.cores)
        with database.begin() as session:
            # Only device classes with a profile have a roofline.
            devices.put_class(session, replace(device, profile=profile), calibrated=True)
            jobs.count(session, made, done=trials)
            # The number of subgraphs and 19 have no common factor, so some but not all trials of each
            # subgraph fail.
            session.execute(
                text(
                    "UPDATE trials SET state = 'done', finished_at = 0.7 * id, estimated_s = 1.3e-3,"
                    " outcome = CASE WHEN id % 19 = 13 THEN 'build_error' ELSE 'ok' END,"
                    " error = CASE WHEN id % 19 = 13 THEN 'LLVM ERROR: out of registers' ELSE '' END,"
                    " latency_s = CASE WHEN id % 19 = 13 THEN NULL ELSE 1e-3 + (id * 7919 % 10007) / 1e7 END,"
                    " run_s = '[1e-3, 1.1e-3, 1.2e-3]'"
                )
            )
            schedules.put_trials(session, list(session.scalars(text("SELECT id FROM trials"))), 0.0)
        return made
    finally:
        database.close()


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.lookup", __doc__, f"{QUICK_RECORDS} records and {QUICK_JOBS} jobs")
    parser.add_argument("--records", type=positive, help=f"[{RECORDS}]")
    parser.add_argument("--database", choices=DATABASES, action="append", help="both unless given")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load [10]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
