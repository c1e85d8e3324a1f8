"""TLS between the brokers of a cluster: the certificates of its catalog, and when the next one is made.

All brokers show one certificate, whose key the catalog's database keeps. Before it ends, the broker that
leads adds another. All brokers trust both from the moment that they have read it, and show the old one for a
while longer, so that no broker is shown a certificate that it does not know yet. A connection that is open
stays open: what is shown counts for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from bendybus.errors import BrokerError
from bendybus.server.tls import make_certificate
from bendybus.store.roster import ClusterCertificate

__all__ = [
    "LIFETIMES",
    "TLS_NAME",
    "CertificateCatalog",
    "Lifetimes",
    "Trust",
    "ends_at_s",
    "new_certificate",
]

logger = logging.getLogger(__name__)

# A certificate names this, whatever machine it is shown by.
TLS_NAME: Final = "bendybus"
# A broker whose clock is far behind takes a new certificate too.
BEGINS_BEFORE: Final = timedelta(days=30)
# How often the values that were last read are checked. This costs no message and no query.
LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Lifetimes:
    validity: timedelta = timedelta(days=730)
    renew_before: timedelta = timedelta(days=90)
    """The next certificate is made this long before the newest one ends."""
    shown_after: timedelta = timedelta(days=1)
    """It is shown this long after it was made. A broker that has not read it by then refuses it."""


LIFETIMES: Final = Lifetimes()


class CertificateCatalog(Protocol):
    """What the certificates need of the cluster's catalog."""

    term: int | None
    certificates: list[ClusterCertificate]

    def add_certificate(self, made: ClusterCertificate) -> None: ...


class Trust:
    """The two sides of TLS between brokers. Both contexts stay the same, and learn of new certificates."""

    def __init__(
        self, data: Path, lifetimes: Lifetimes = LIFETIMES, now_s: Callable[[], float] = time.time
    ) -> None:
        """`data`: a folder that only this broker's user can read."""
        self._data = data
        self._lifetimes = lifetimes
        self._now_s = now_s
        self._trusted: set[str] = set()
        self._shown: ClusterCertificate | None = None
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (self.server, self.client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            # Members have one certificate in common, so it names no machine.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED

    def use(self, certificates: Sequence[ClusterCertificate]) -> None:
        """Trust all of these that have not ended, and show the one whose time has come."""
        for each in certificates:
            if each.certificate not in self._trusted:
                for context in (self.server, self.client):
                    context.load_verify_locations(cadata=each.certificate)
                self._trusted.add(each.certificate)
        shown = self._to_show(certificates)
        if shown != self._shown:
            # If the disk is full, it is tried again with the next look.
            self._load(shown)
            if self._shown is not None:
                logger.info("the cluster's new certificate is used for connections between brokers")
            self._shown = shown

    def _to_show(self, certificates: Sequence[ClusterCertificate]) -> ClusterCertificate:
        now = self._now_s()
        due = [each for each in certificates if each.shown_from_s <= now < ends_at_s(each)]
        # If the last one has ended, because all brokers were stopped for a long time, the next one is shown
        # at once.
        return due[-1] if due else certificates[-1]

    def _load(self, shown: ClusterCertificate) -> None:
        # The standard library reads keys from files only.
        with tempfile.TemporaryDirectory(dir=self._data) as folder:
            certificate, key = Path(folder, "cluster.crt"), Path(folder, "cluster.key")
            certificate.write_text(shown.certificate)
            key.touch(0o600)
            key.write_text(shown.key)
            for context in (self.server, self.client):
                context.load_cert_chain(certificate, key)

    def next_certificate(self, certificates: Sequence[ClusterCertificate]) -> ClusterCertificate | None:
        """The certificate that is to be added now; None if the newest is good for a while."""
        now, lifetimes = self._now_s(), self._lifetimes
        if now + lifetimes.renew_before.total_seconds() < ends_at_s(certificates[-1]):
            return None
        certificate, key = new_certificate(lifetimes.validity, now)
        return ClusterCertificate(certificate, key, now + lifetimes.shown_after.total_seconds())

    async def keep(self, catalog: CertificateCatalog) -> None:
        """Follow what the catalog has. The broker that leads adds to it."""
        while True:
            try:
                if catalog.term is not None and (made := self.next_certificate(catalog.certificates)):
                    await asyncio.to_thread(catalog.add_certificate, made)
                    logger.info("the cluster has a new certificate")
                self.use(catalog.certificates)
            except BrokerError as reason:
                logger.warning("the cluster's certificate is not renewed yet: %s", reason)
            except Exception:
                logger.exception("the cluster's certificate is not renewed yet")
            await _pause(LOOK_S)


async def _pause(delay_s: float) -> None:
    await asyncio.sleep(delay_s)


def new_certificate(validity: timedelta, now_s: float | None = None) -> tuple[str, str]:
    """A certificate for all brokers, and its key; both PEM. The time is the machine's if not given."""
    now = datetime.fromtimestamp(time.time() if now_s is None else now_s, UTC)
    certificate, key = make_certificate([TLS_NAME], validity, now=now, begins_before=BEGINS_BEFORE)
    return certificate.decode(), key.decode()


def ends_at_s(certificate: ClusterCertificate) -> float:
    """When it ends, in seconds since 1970."""
    # The standard library decodes what it is asked to trust.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificate.certificate)
    return float(ssl.cert_time_to_seconds(str(context.get_ca_certs()[0]["notAfter"])))
