"""A rig of several servers and schedulers on PostgreSQL and Redis, with links that can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.links import Link, Links
from tests.faults.rig import Backends, Rig
from tests.services import Postgresql, Redis

DATABASE = "tunefarm"


@dataclass(kw_only=True)
class ReplicatedRig(Rig):
    """Links connect every server and scheduler to the database and the broker, and every worker to any server
    that accepts the connection, as behind a load balancer.
    """

    postgresql: Postgresql
    redis: Redis
    links: Links
    database_links: dict[str, Link] = field(default_factory=dict)
    broker_links: dict[str, Link] = field(default_factory=dict)
    fleet_links: dict[str, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.postgresql.create(DATABASE)
        super().__post_init__()

    def backends(self, name: str) -> Backends:
        database = self._link(self.database_links, name, lambda: [("127.0.0.1", self.postgresql.port)])
        broker = self._link(self.broker_links, name, lambda: [("127.0.0.1", self.redis.port)])
        return Backends(self.postgresql.tcp_url(DATABASE, database.port), self.redis.url_by(broker.port))

    def fleet(self, worker: str) -> str:
        link = self._link(self.fleet_links, worker, lambda: self.fleets)
        return f"{link.host}:{link.port}"

    def _link(self, known: dict[str, Link], name: str, targets: Callable[[], list[tuple[str, int]]]) -> Link:
        if name not in known:
            known[name] = self.links.add(*targets())
        return known[name]
