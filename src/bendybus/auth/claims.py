"""What one connection may do, and until when.

A claim comes from a login (SASL PLAIN, without an end) or from a token: one that was put through
CBS, or a JSON Web Token in the place of a login's key. Every right is checked by `Claims.require`.
How a token is verified: sas.py, jwt.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bendybus import audit
from bendybus.auth.key_ring import KeyRing
from bendybus.auth.paths import ancestry, covers, entity_path, resource_path
from bendybus.auth.rights import Right
from bendybus.auth.sas import INVALID_AUDIENCE, MALFORMED, SAS_PREFIX, SasToken, verify
from bendybus.errors import QuotaExceeded, Unauthorized
from bendybus.names import Instant

__all__ = ["TOKEN_LOGIN", "Claim", "Claims", "log_in", "put_token"]

# The user name with which a client logs in that has a token and no key.
TOKEN_LOGIN = "$jwt"

# A connection holds at most some thousand links, each with an audience of its own (a namespace's
# 10,000 entities are reached with one token for the namespace).
CLAIMS_MAX = 5000

# As HTTP clients are told it; the others are in sas.py.
LOCAL_AUTH_DISABLED = 40107

# header.payload.signature, each base64url [RFC 7519 section 3].
_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
# As HTTP writes it before a JWT [RFC 6750 2.1]; the name of a scheme is in any case [RFC 9110 11.1].
_BEARER = re.compile("bearer +", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Claim:
    """Rights over a path and everything below it."""

    path_prefix: str
    """In comparable form (paths.py); the empty prefix is the whole namespace."""
    rights: Right
    expires_at: Instant | None = None
    """None for a login, which lasts as long as its connection."""
    holder: str = field(default="", compare=False)
    """Whose it is, for the audit log: a rule's name, or the subject of a JSON Web Token."""

    def holds_at(self, now: Instant) -> bool:
        return self.expires_at is None or now < self.expires_at


class Claims:
    """The claims of one connection."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        # A renewed token replaces the previous one. It never replaces a login.
        self._claims: dict[tuple[str, bool], Claim] = {}

    def add(self, claim: Claim, now: Instant) -> None:
        """Add a claim. A newer token for the same path replaces the older one."""
        key = (claim.path_prefix, claim.expires_at is None)
        if key not in self._claims and len(self._claims) >= CLAIMS_MAX:
            self._claims = {key: held for key, held in self._claims.items() if held.holds_at(now)}
            if len(self._claims) >= CLAIMS_MAX:
                raise QuotaExceeded(f"This connection already holds tokens for {CLAIMS_MAX} resources.")
        self._claims[key] = claim

    def require(self, path: str, right: Right, now: Instant) -> Claim:
        """The claim that gives `right` over `path`; `Unauthorized` if none does that still holds."""
        for claim in self._granting(path, right):
            if claim.holds_at(now):
                return claim
        raise Unauthorized(
            f"Unauthorized access. '{right.label}' claim(s) are required to perform this operation. "
            f"Resource: '{path}'"
        )

    def expires(self, path: str, right: Right) -> Instant | None:
        """When `right` over `path` ends: None for never, 0 when it was never given."""
        latest = Instant(0)
        for claim in self._granting(path, right):
            if claim.expires_at is None:
                return None
            latest = max(latest, claim.expires_at)
        return latest

    def _granting(self, path: str, right: Right) -> Iterator[Claim]:
        for scope in ancestry(entity_path(path)):
            for lasting in (True, False):
                claim = self._claims.get((scope, lasting))
                if claim is not None and claim.rights.allows(right):
                    yield claim


def log_in(ring: KeyRing, rule_name: str, key: str, now: Instant) -> list[Claim]:
    """The claims of a SASL PLAIN login; `Unauthorized` when no rule has that name and key, or none counts.

    Under the name `$jwt` the key is a token: so `azure-servicebus-jms` logs in with a credential.
    """
    if rule_name == TOKEN_LOGIN:
        return _log_in_with_token(ring, key, now)
    _refuse_keys(ring)
    rules = ring.opened_by(rule_name, key)
    if not rules:
        raise Unauthorized(f"No rule '{rule_name[:60]}' has the key given.")
    return [Claim(entity_path(rule.scope), rule.rights, holder=rule.holder) for rule in rules]


def _log_in_with_token(ring: KeyRing, token_text: str, now: Instant) -> list[Claim]:
    if ring.issuer is None:
        raise Unauthorized("A login with a JWT, but JWT validation is not configured on this server.")
    held = ring.issuer.scopes(token_text, now)
    claims = [Claim(entity_path(scope), rights, ends_at, who) for scope, rights, ends_at, who in held]
    if not claims:
        raise Unauthorized("No role in the token, and none assigned to its bearer, gives a right.")
    return claims


def put_token(ring: KeyRing, token_text: str, audience: str, now: Instant) -> Claim:
    """The claim that a token gives for an audience; `Unauthorized` with the reason when it gives none.

    The text alone decides what kind of token it is: a put-token request's `type` is
    wrong in some clients. The claim reaches as far as the audience asked for, which
    may be less than the token would allow and never more. A refusal is recorded in the audit log.
    """
    try:
        return _claim(ring, token_text, audience, now)
    except Unauthorized as refusal:
        audit.record(
            "token-refused",
            reason=audit.token_reason(refusal),
            claimed=_claimed_name(token_text),
            resource=resource_path(audience),
        )
        raise


def _claim(ring: KeyRing, token_text: str, audience: str, now: Instant) -> Claim:
    if not token_text.startswith(SAS_PREFIX):
        web_token = _BEARER.sub("", token_text, count=1).strip()
        if _JWT.fullmatch(web_token):
            return _put_web_token(ring, web_token, resource_path(audience), now)
        raise Unauthorized(
            "The token is of no known kind: it is neither a SharedAccessSignature nor a JWT.",
            sub_code=MALFORMED,
        )
    _refuse_keys(ring)
    token = SasToken.parse(token_text)
    rule = verify(token, ring, now)
    path = resource_path(audience)
    if not covers(token.path, path):
        raise Unauthorized(
            f"The token is for '{token.path}' and does not reach the audience '{path or 'the namespace'}'.",
            sub_code=INVALID_AUDIENCE,
        )
    return Claim(path, rule.rights, token.expires_at, rule.holder)


def _refuse_keys(ring: KeyRing) -> None:
    """Whatever was signed or given: nothing that a key proves counts where local authentication is off."""
    if not ring.local_auth:
        raise Unauthorized(
            "LocalAuthDisabled: Authorization failed because SAS authentication has been disabled for the "
            "namespace.",
            sub_code=LOCAL_AUTH_DISABLED,
        )


def _put_web_token(ring: KeyRing, token_text: str, path: str, now: Instant) -> Claim:
    if ring.issuer is None:
        raise Unauthorized("A JWT was put, but JWT validation is not configured on this server.")
    return Claim(path, *ring.issuer.rights(token_text, path, now))


def _claimed_name(token_text: str) -> str:
    """The rule that a SAS token names; it need not exist."""
    try:
        return audit.claimed_name(next(SasToken.parse(token_text).key_names()))
    except Unauthorized:
        return ""
