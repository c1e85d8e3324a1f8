"""Who the client of a connection is: which namespace it means, and what it may do there.

The host name that the client called decides the namespace. Otherwise the first login or token
does, by the key that signed it. Until then only `$cbs` can be reached. A login or token that is
accepted adds claims and ends probation (probation.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from bendybus import audit
from bendybus.amqp.conditions import CONNECTION_FORCED
from bendybus.amqp.performatives import Open
from bendybus.auth.claims import TOKEN_LOGIN, Claim, Claims, log_in
from bendybus.auth.key_ring import KeyRing
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.engine.events import SaslInitReceived
from bendybus.errors import ProtocolError, Unauthorized
from bendybus.gateway.probation import Probation
from bendybus.namespaces import CALLED_HOST, Namespace, Namespaces

__all__ = ["ClientIdentity"]

logger = logging.getLogger(__name__)


class ClientIdentity:
    __slots__ = (
        *("_holder", "_namespaces", "claims", "container_id", "host", "namespace", "probation"),
        "properties",
    )

    def __init__(self, namespaces: Namespaces, probation: Probation) -> None:
        self._namespaces = namespaces
        self.probation = probation
        self.claims = Claims()
        # None until a host name or a key has identified one of several.
        self.namespace = namespaces.only
        self._holder = ""
        # As the client called this server.
        self.host = ""
        # As the client calls itself. JMS clients put their client identifier here.
        self.container_id = ""
        # What the client says about itself when it opens the connection.
        self.properties: Mapping[str, object] = {}

    @property
    def broker(self) -> Broker:
        if self.namespace is None:
            raise Unauthorized("No token has been put that says which namespace is meant.")
        return self.namespace.broker

    def keys_for(self, token: str) -> KeyRing:
        """The keys of the client's namespace. If that is not known yet, the token's signature decides it."""
        if self.namespace is None:
            self.namespace = self._namespaces.signed_by(token)
        return KeyRing() if self.namespace is None else self.namespace.keys

    def accept_claim(self, claim: Claim) -> None:
        """A login or a token was accepted. Nothing else ends probation."""
        self.claims.add(claim, now())
        self._holder = claim.holder
        self.probation.end()

    def actor(self, peer: str) -> audit.Actor:
        """For the audit log: whose token or login was accepted last."""
        return audit.Actor(self._holder, peer, "" if self.namespace is None else self.namespace.name)

    def log_in(self, init: SaslInitReceived, transport: asyncio.Transport | None, peer: str) -> bool:
        """Check a SASL login. PLAIN proves a rule's key, or has a token. After others, tokens follow."""
        if init.mechanism != "PLAIN":
            return True
        rule_name, namespace = "", None
        try:
            _, rule_name, key = init.response.decode().split("\0")
            namespace = self._named(init.hostname, transport) or self._namespaces.opened_by(rule_name, key)
            keys = KeyRing() if namespace is None else namespace.keys
            for claim in log_in(keys, rule_name, key, now()):
                self.accept_claim(claim)
            self.namespace = namespace
        except (Unauthorized, ValueError) as refusal:
            reason = "wrong-key" if rule_name else "malformed"
            if rule_name == TOKEN_LOGIN and isinstance(refusal, Unauthorized):
                reason = audit.token_reason(refusal)
            elif namespace is not None and not namespace.keys.local_auth:
                reason = "local-auth-disabled"
            claimed = audit.claimed_name(rule_name)
            audit.record("login-refused", self.actor(peer), reason=reason, claimed=claimed)
            logger.info("login from %s refused: %s", peer, refusal)
            return False
        return True

    def enter(self, opening: Open, transport: asyncio.Transport | None) -> None:
        """The client has opened the connection. Its host name must not contradict its login."""
        self.container_id, self.properties = opening.container_id, opening.properties or {}
        named = self._named(opening.hostname, transport)
        self.host = opening.hostname or ("" if named is None else named.name)
        if self.namespace is None:
            self.namespace = named
        elif named is not None and named is not self.namespace:
            raise ProtocolError(CONNECTION_FORCED, f"The login is not one of the namespace '{named.name}'.")

    def _named(self, hostname: str | None, transport: asyncio.Transport | None) -> Namespace | None:
        """The namespace that the client called by a host name: in AMQP, in TLS or in HTTP."""
        namespaces = self._namespaces
        if namespaces.only is not None or transport is None:
            return namespaces.only
        over_tls = getattr(transport.get_extra_info("ssl_object"), CALLED_HOST, None)
        return namespaces.named_by(hostname, transport.get_extra_info(CALLED_HOST), over_tls)
