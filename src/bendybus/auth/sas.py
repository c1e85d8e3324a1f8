"""Shared access signatures: the token text, its check, and its making.

    SharedAccessSignature sr=<encoded URI>&sig=<encoded base64>&se=<unix seconds>&skn=<rule>

The signature covers `sr` and `se` exactly as they stand in the token. `sr` is
never decoded and encoded again for the check, since clients differ in the case
of their escapes. What a valid token then grants is decided in claims.py.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote_plus, unquote

from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.paths import resource_path
from bendybus.errors import Unauthorized
from bendybus.names import Instant

__all__ = [
    "EXPIRED",
    "EXPIRY_MAX_S",
    "INVALID_AUDIENCE",
    "INVALID_SIGNATURE",
    "MALFORMED",
    "SAS_PREFIX",
    "SasToken",
    "make_token",
    "signer",
    "verify",
]

SAS_PREFIX = "SharedAccessSignature "

# Real tokens have some 200 characters; js signs a whole request URL. A cap before any work is done.
TOKEN_LENGTH_MAX = 8192

# What is wrong with a token, as HTTP clients are told it; see `Unauthorized.sub_code`.
INVALID_SIGNATURE = 40103
INVALID_AUDIENCE = 40104
MALFORMED = 40105
EXPIRED = 40106

# 9999-12-31T23:59:59Z, the last second that most clients can write down.
EXPIRY_MAX_S = 253_402_300_799


@dataclass(frozen=True, slots=True)
class SasToken:
    """A token that is parsed and not yet verified."""

    resource: str
    """`sr` as it stands in the token, still encoded: this is what was signed."""
    signature: str = field(repr=False)
    expiry: str
    """`se` as it stands in the token: this too was signed."""
    key_name: str
    """`skn` as it stands in the token."""

    @classmethod
    def parse(cls, text: str) -> SasToken:
        """Parse a token, or raise `Unauthorized` with what it lacks."""
        if not text.startswith(SAS_PREFIX):
            raise Unauthorized("The token is not a SharedAccessSignature.", sub_code=MALFORMED)
        if len(text) > TOKEN_LENGTH_MAX:
            raise Unauthorized(
                f"The token has {len(text)} characters; at most {TOKEN_LENGTH_MAX} are read.",
                sub_code=MALFORMED,
            )
        fields: dict[str, str] = {}
        for part in text.removeprefix(SAS_PREFIX).strip().split("&"):
            name, _, value = part.partition("=")
            # Two values for one field: it is unclear which of them was signed.
            if name in fields:
                raise Unauthorized(f"The token has the field '{name}' twice.", sub_code=MALFORMED)
            fields[name] = value
        missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
        if missing:
            raise Unauthorized(f"The token lacks the field '{missing[0]}'.", sub_code=MALFORMED)
        # `+` is base64's own and must not become a space, so no unquote_plus here.
        return cls(fields["sr"], unquote(fields["sig"]), fields["se"], fields["skn"])

    @property
    def path(self) -> str:
        """What the token is for, in comparable form; the empty path is the namespace."""
        return resource_path(unquote(self.resource))

    @property
    def expires_at(self) -> Instant:
        if not (self.expiry.isascii() and self.expiry.isdigit()) or len(self.expiry) > len(str(EXPIRY_MAX_S)):
            raise Unauthorized(
                f"The token's expiry '{self.expiry[:40]}' is not in seconds since 1970.", sub_code=MALFORMED
            )
        return Instant(min(int(self.expiry), EXPIRY_MAX_S) * 1000)

    def key_names(self) -> Iterator[str]:
        """The rule names that `skn` may stand for: the Python client encodes special characters twice."""
        yield (once := unquote(self.key_name))
        if (twice := unquote(once)) != once:
            yield twice


def signer(token: SasToken, ring: KeyRing) -> AccessRule | None:
    """The rule whose key signed this token, if any did: whether it still holds is another question."""
    path = token.path
    offered = token.signature.encode()
    signed: AccessRule | None = None
    for rule in (rule for name in token.key_names() for rule in ring.named(name, path)):
        for key in rule.keys:
            if hmac.compare_digest(offered, _signature(token.resource, token.expiry, key)):
                signed = signed or rule
    return signed


def verify(token: SasToken, ring: KeyRing, now: Instant) -> AccessRule:
    """The rule whose key signed this token; `Unauthorized` if none did or the time is over."""
    path = token.path
    signed = signer(token, ring)
    if signed is None:
        # The same text for an unknown rule and for a wrong key, so that nobody learns which rules exist.
        raise Unauthorized(
            f"InvalidSignature: The token has an invalid signature. No key of a rule "
            f"'{next(token.key_names())[:60]}' over '{path or 'the namespace'}' made it.",
            sub_code=INVALID_SIGNATURE,
        )
    if token.expires_at <= now:
        ended = f"{datetime.fromtimestamp(token.expires_at / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        raise Unauthorized(
            f"ExpiredToken: The token is expired. Expiration time: '{ended}'. "
            f"It was for '{path or 'the namespace'}'.",
            sub_code=EXPIRED,
        )
    return signed


def make_token(resource_uri: str, key_name: str, key: str, expires_at_s: int) -> str:
    """A token as clients make it, for a URI such as `sb://localhost/orders`."""
    resource = quote_plus(resource_uri)
    signature = quote_plus(_signature(resource, str(expires_at_s), key))
    return f"{SAS_PREFIX}sr={resource}&sig={signature}&se={expires_at_s}&skn={quote_plus(key_name)}"


def _signature(resource: str, expiry: str, key: str) -> bytes:
    # The key's text is the key: it looks like base64 and is not decoded.
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest)
