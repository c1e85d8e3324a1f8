"""The certificate between brokers is renewed while they run."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from bendybus.server.cluster_trust import new_certificate
from fix_postgres import Postgres
from interop.sdk import BREAKS_CONNECTIONS
from interop.test_cluster import Cluster, until
from interop.traffic import Traffic

pytestmark = BREAKS_CONNECTIONS


def shown(cluster: Cluster) -> dict[str, str]:
    """The certificate that each broker shows."""
    alive = cluster.ask("SELECT name, address FROM bendybus_cluster.broker WHERE state = 'serving'")
    found = {}
    for name, address in alive:
        host, _, port = address.rpartition(":")
        found[name] = ssl.get_server_certificate((host, int(port)))
    return found


@pytest.mark.row("N-09")
def test_a_certificate_that_ends_soon_is_replaced_without_an_interruption(
    tmp_path: Path, postgres: Postgres
) -> None:
    cluster = Cluster(tmp_path, postgres)
    try:
        cluster.start("a")
        cluster["a"].stop()
        old, key = new_certificate(timedelta(days=5))
        with postgres.connect(cluster.database) as connection:
            connection.execute("UPDATE bendybus_cluster.about SET certificate = %s, key = %s", (old, key))
        cluster.start("a", "b")
        until(lambda: len(set(cluster.owners())) == 2)
        with cluster.administration("a") as admin:
            admin.create_queue("orders", enable_partitioning=True)
        traffic = Traffic(cluster.connection_strings("ab"), "orders")
        traffic.start()
        traffic.goes_on()
        made = "SELECT certificate FROM bendybus_cluster.certificate"
        until(lambda: len(cluster.ask(made)) == 1)
        ((new,),) = cluster.ask(made)
        assert shown(cluster) == {"a": old, "b": old}
        with postgres.connect(cluster.database) as connection:
            # A day later. Only those that do not lead read it at once.
            connection.execute("UPDATE bendybus_cluster.certificate SET shown_from = now()")
            connection.execute("UPDATE bendybus_cluster.leader SET revision = revision + 1")
        until(lambda: shown(cluster) == {"a": old, "b": new})
        traffic.goes_on()
        # New connections, between brokers that show the old one and brokers that show the new one.
        cluster.start("c")
        until(lambda: len(set(cluster.owners())) == 3)
        traffic.goes_on()
        assert shown(cluster) == {"a": old, "b": new, "c": new}
        cluster["a"].stop()
        cluster.start("a")
        until(lambda: shown(cluster) == dict.fromkeys("abc", new))
        until(lambda: len(set(cluster.owners())) == 3)
        traffic.goes_on()
        traffic.finish()
        assert len(cluster.ask(made)) == 1
    finally:
        cluster.close()
