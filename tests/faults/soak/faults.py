"""The faults of a soak. Each repairs what it broke before it ends."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping

from tests.faults import environments
from tests.faults.links import Link
from tests.faults.rig import Program
from tests.faults.soak.rig import ELDERS, SoakRig

HOUR_S = 3600.0
# These have links to the database and the broker.
OF_SERVICE = ("server-1", "server-2", "scheduler-1", "scheduler-2")

Fault = Callable[[SoakRig, random.Random], str]


def inject(rig: SoakRig, name: str, draw: random.Random) -> str:
    """Inject a fault, and repair it. Return its target."""
    return FAULTS[name](rig, draw)


def _end_and_start(rig: SoakRig, name: str, end: Callable[[Program], None], away_s: float) -> str:
    rig.down.add(name)
    program = rig.programs[name]
    end(program)
    time.sleep(away_s)
    program.start()
    rig.down.discard(name)
    if name.startswith("server"):
        rig.wait_ready()
    return name


def _mortal(rig: SoakRig, kind: str, draw: random.Random) -> str:
    return draw.choice([one for one in rig.programs if one.startswith(kind) and one not in ELDERS])


def _kill(kind: str) -> Fault:
    def fault(rig: SoakRig, draw: random.Random) -> str:
        return _end_and_start(rig, _mortal(rig, kind, draw), Program.kill, draw.uniform(0.0, 5.0))

    return fault


def _stop(kind: str) -> Fault:
    def fault(rig: SoakRig, draw: random.Random) -> str:
        return _end_and_start(rig, _mortal(rig, kind, draw), Program.stop, 0.0)

    return fault


def _pause(rig: SoakRig, draw: random.Random) -> str:
    """Stop a process for longer than a lease."""
    name = draw.choice(list(rig.programs))
    rig.programs[name].send(signal.SIGSTOP)
    time.sleep(draw.uniform(1.0, 6.0))
    rig.programs[name].send(signal.SIGCONT)
    return name


def _strike_link(links: Callable[[SoakRig], Mapping[str, Link]], how: str) -> Fault:
    def fault(rig: SoakRig, draw: random.Random) -> str:
        known = links(rig)
        name = draw.choice(sorted(known))
        struck = known[name].being_cut() if how == "cut" else known[name].being_silent()
        with struck:
            time.sleep(draw.uniform(1.0, 6.0))
        return name

    return fault


def _to_servers(rig: SoakRig) -> Mapping[str, Link]:
    return rig.fleet_links


def _to_database(rig: SoakRig) -> Mapping[str, Link]:
    return {name: link for name, link in rig.database_links.items() if name in OF_SERVICE}


def _to_broker(rig: SoakRig) -> Mapping[str, Link]:
    return {name: link for name, link in rig.broker_links.items() if name in OF_SERVICE}


def _flush_redis(rig: SoakRig, draw: random.Random) -> str:
    rig.redis.flush()
    return "redis"


def _crash_redis(rig: SoakRig, draw: random.Random) -> str:
    rig.redis.stop()
    time.sleep(draw.uniform(0.0, 4.0))
    rig.redis.start()
    return "redis"


def _crash_postgresql(rig: SoakRig, draw: random.Random) -> str:
    rig.postgresql.stop()
    time.sleep(draw.uniform(0.0, 3.0))
    rig.postgresql.start()
    return "postgresql"


def _fill_disk(rig: SoakRig, draw: random.Random) -> str:
    assert rig.disk is not None, "it was asked before"
    with environments.full(rig.disk):
        time.sleep(draw.uniform(1.0, 4.0))
    # The process may have ended because it couldn't write its log.
    rig.postgresql.stop()
    rig.postgresql.start()
    return "postgresql"


def _step_database_clock(rig: SoakRig, draw: random.Random) -> str:
    """Set the clock that leases use by a compressed hour."""
    seconds = draw.choice((-1, 1)) * HOUR_S / rig.speed_up
    rig.step_clock(seconds)
    return f"by {seconds:+.0f} s"


def _step_host_clock(rig: SoakRig, draw: random.Random) -> str:
    name = draw.choice([one for one in rig.programs if not one.startswith("worker")])
    rig.step_host_clock(name, draw.choice((-HOUR_S, HOUR_S)))
    return name


FAULTS: Mapping[str, Fault] = {
    "worker killed": _kill("worker"),
    "worker restarted": _stop("worker"),
    "server killed": _kill("server"),
    "server restarted": _stop("server"),
    "scheduler killed": _kill("scheduler"),
    "scheduler restarted": _stop("scheduler"),
    "process stands still": _pause,
    "worker cut off": _strike_link(_to_servers, "cut"),
    "worker's network silent": _strike_link(_to_servers, "silent"),
    "database cut off": _strike_link(_to_database, "cut"),
    "database's network silent": _strike_link(_to_database, "silent"),
    "broker cut off": _strike_link(_to_broker, "cut"),
    "broker's network silent": _strike_link(_to_broker, "silent"),
    "Redis flushed": _flush_redis,
    "Redis crashed": _crash_redis,
    "PostgreSQL crashed": _crash_postgresql,
    "disk full": _fill_disk,
    "database's clock stepped": _step_database_clock,
    "host's clock stepped": _step_host_clock,
}


def possible(rig: SoakRig) -> list[str]:
    """Return the names of the faults that this machine allows."""
    return [name for name in FAULTS if name != "disk full" or rig.disk is not None]


def order(names: list[str], draw: random.Random) -> Callable[[], str]:
    """Return a function that draws the next fault: each one comes once before any comes again."""
    left: list[str] = []

    def following() -> str:
        if not left:
            left.extend(draw.sample(names, len(names)))
        return left.pop()

    return following
