"""Who may make a request to the resource manager: which tokens are accepted, and what each gives access to.

    a JSON Web Token    of the provider that the operator trusts; its roles say what it may manage
    a key               of an authorization rule: gives access to the namespace or entity of the rule
    any token           with `--arm-any-token`, for requests from the server's own machine

Azure's management clients send `Authorization: Bearer TOKEN`, whatever their credential gives. The resource
manager needs the right Manage. It creates and deletes namespaces only for a role that covers all of them: a
namespace's key, and a role in one namespace, are not enough.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import Request

from bendybus import audit
from bendybus.arm.errors import Forbidden
from bendybus.auth.claims import LOCAL_AUTH_DISABLED
from bendybus.auth.http import MISSING_TOKEN
from bendybus.auth.key_ring import Issuer, KeyRing
from bendybus.auth.paths import covers, entity_path
from bendybus.auth.rights import Right
from bendybus.auth.sas import INVALID_SIGNATURE
from bendybus.broker.clock import now
from bendybus.errors import Unauthorized
from bendybus.namespaces import Namespace

__all__ = ["Caller", "bearer_of", "is_local", "is_loopback"]

# [RFC 6750 2.1]; the name of a scheme is in any case [RFC 9110 11.1].
_BEARER: Final = re.compile("bearer +(?P<token>[^ ]+) *", re.IGNORECASE)
# header.payload.signature, each base64url [RFC 7519 section 3]. No key has two dots.
_JWT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")

ANY_TOKEN: Final = "any-token"

Held: TypeAlias = tuple[str, Right, str]
"""A scope, the rights over it, and whose they are."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The bearer of a token."""

    token: str
    is_trusted: bool = False
    """Whether every token opens everything."""

    def require(self, namespace: Namespace, path: str, right: Right = Right.MANAGE) -> None:
        """`Forbidden` unless the token gives `right` over `path`; `Unauthorized` if it is not valid here."""
        holder = ANY_TOKEN
        if not self.is_trusted:
            held = list(self._held(namespace.keys))
            holder = held[0][2] if held else ""
            wanted = entity_path(path)
            if not any(covers(scope, wanted) and rights.allows(right) for scope, rights, _ in held):
                _refuse(right, path or "the namespace")
        audit.enter(by=holder, namespace=namespace.name)

    def manages(self, namespace: Namespace) -> bool:
        """Whether `require` would let it manage the namespace."""
        if self.is_trusted:
            return True
        try:
            held = list(self._held(namespace.keys))
        except Unauthorized:
            return False
        return any(not scope and rights.allows(Right.MANAGE) for scope, rights, _ in held)

    def require_known(self, namespaces: Iterable[Namespace]) -> None:
        """`Unauthorized` unless the token opens anything in one of these."""
        refusal = Unauthorized("This server has no namespace.")
        for namespace in namespaces:
            try:
                if self.is_trusted or list(self._held(namespace.keys)):
                    return
            except Unauthorized as reason:
                refusal = reason
        audit.record("token-refused", reason=audit.token_reason(refusal))
        raise refusal

    def require_all(self, issuer: Issuer | None) -> None:
        """`Forbidden` unless the token may manage all namespaces: those that exist, and further ones."""
        if self.is_trusted:
            audit.enter(by=ANY_TOKEN)
            return
        if issuer is None or not _JWT.fullmatch(self.token):
            _refuse(Right.MANAGE, "all namespaces")
        held = list(_roles(issuer, self.token))
        if not any(not scope and rights.allows(Right.MANAGE) for scope, rights, _ in held):
            _refuse(Right.MANAGE, "all namespaces")
        audit.enter(by=held[0][2])

    def _held(self, keys: KeyRing) -> Iterator[Held]:
        """What the token gives in a namespace; `Unauthorized` if it is not valid there."""
        if _JWT.fullmatch(self.token):
            if keys.issuer is None:
                raise Unauthorized("The token is a JWT, but JWT validation is not configured on this server.")
            yield from _roles(keys.issuer, self.token)
            return
        if not keys.local_auth:
            raise Unauthorized(
                "Local authentication is disabled: this namespace accepts no keys.",
                sub_code=LOCAL_AUTH_DISABLED,
            )
        offered = self.token.encode()
        # Every key is compared, and each in constant time.
        proven = [
            rule for rule in keys if sum(hmac.compare_digest(offered, known.encode()) for known in rule.keys)
        ]
        if not proven:
            raise Unauthorized(
                "The token is neither a JWT nor a key of an authorization rule.", sub_code=INVALID_SIGNATURE
            )
        for rule in proven:
            yield entity_path(rule.scope), rule.rights, rule.holder


def _roles(issuer: Issuer, token: str) -> Iterator[Held]:
    for scope, rights, _, who in issuer.of_resource_manager().scopes(token, now()):
        yield entity_path(scope), rights, who


def _refuse(right: Right, where: str) -> NoReturn:
    audit.record("operation-refused", reason="no-right", resource=where, right=right.label)
    raise Forbidden(f"The token's bearer does not have the right '{right.label}' over '{where}'.")


def bearer_of(request: Request, *, any_token: bool) -> Caller:
    """Who makes the request. `any_token`: whether every token is good, if the request is of this machine."""
    found = _BEARER.fullmatch(request.headers.get("authorization", "").strip())
    if found is None:
        audit.record("token-refused", reason="no-token", resource=request.url.path)
        raise Unauthorized(
            "The request has no Authorization header with a Bearer token.", sub_code=MISSING_TOKEN
        )
    return Caller(found["token"], any_token and is_local(request))


def is_local(request: Request) -> bool:
    """Whether the request comes from this machine, and calls it by a name of its own.

    A page of another site can make a browser send requests to this machine. Its own name is then in `Host`.
    """
    client = request.client
    if client is None or not is_loopback(client.host):
        return False
    try:
        called = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return False
    return is_loopback(called or "")


def is_loopback(host: str) -> bool:
    """Whether the name or address always means this machine."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
