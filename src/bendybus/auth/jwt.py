"""JSON Web Tokens of an identity provider that the operator trusts, as Entra ID issues them.

A token is accepted if one of the provider's public keys signed it with an algorithm that fits
the key, if its audience is ours, and if it is valid now. What its bearer may do: roles.py.
Keys and time are arguments; where keys come from: server/key_sets.py. Signatures with a shared
secret (HS256) and unsigned tokens are never accepted: anyone who knows the public key could
make them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Final, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from bendybus.auth.paths import covers, entity_path
from bendybus.auth.rights import Right
from bendybus.auth.roles import WELL_KNOWN_ROLES, Role
from bendybus.auth.sas import EXPIRED, EXPIRY_MAX_S, INVALID_AUDIENCE, INVALID_SIGNATURE, MALFORMED
from bendybus.errors import Unauthorized
from bendybus.names import Instant

if TYPE_CHECKING:
    from jwt.types import Options

__all__ = ["DEFAULT_AUDIENCES", "KeySet", "PublicKey", "PublicKeys", "TrustedIssuer", "issuer_names"]

# What Azure's clients ask tokens for, and the id of Service Bus in Entra ID, which some tokens have instead.
DEFAULT_AUDIENCES: Final = ("https://servicebus.azure.net", "80a10ef9-8168-493d-abf9-3297c4ef6e3c")

# What Azure's management tools ask tokens for.
RESOURCE_MANAGER_AUDIENCES: Final = ("https://management.azure.com", "https://management.core.windows.net")

# One tenant of Entra ID has two names: its tokens of version 1 have the first, those of version 2 the second.
_TENANT: Final = re.compile(
    r"https://(sts\.windows\.net|login\.microsoftonline\.(?:com|us))/([\w.-]+)(?:/v2\.0)?/?", re.IGNORECASE
)

# Entra's tokens have one to three thousand characters; with two hundred groups in them, some more.
TOKEN_LENGTH_MAX: Final = 16 * 1024

# How far the provider's clock may be ahead of ours. The end of a token is never stretched.
CLOCK_SKEW_MS: Final = 60_000

# A provider shows two or three keys at a time.
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048

_RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of a provider, and the kinds of signature that fit it."""

    key_id: str | None
    algorithms: tuple[str, ...]
    key: RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of a JWKS document that can sign tokens; others in it are passed over."""

    keys: tuple[PublicKey, ...] = ()

    @classmethod
    def parse(cls, document: object) -> KeySet:
        """`ValueError` when it is not a key set at all, or none of its keys is of use."""
        listed = document.get("keys") if isinstance(document, Mapping) else None
        if not isinstance(listed, list):
            raise ValueError("not a JSON Web Key Set: there is no list 'keys'")
        found = (_public_key(each) for each in listed[:KEYS_MAX])
        keys = tuple(key for key in found if key is not None)
        if not keys:
            raise ValueError("none of its keys can prove a token: RSA (2048 bits or more), EC and Ed25519 do")
        return cls(keys)

    def fitting(self, key_id: object, algorithm: str) -> list[PublicKey]:
        """The keys that may have signed: those of that id, or all when the token names none."""
        return [
            key
            for key in self.keys
            if algorithm in key.algorithms and (key_id is None or key.key_id is None or key.key_id == key_id)
        ]


def _public_key(described: object) -> PublicKey | None:
    if not isinstance(described, dict) or described.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(described, algorithm=_some_algorithm(described)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        algorithms: tuple[str, ...] = _RSA_ALGORITHMS
    elif isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVE_ALGORITHMS:
        algorithms = (_CURVE_ALGORITHMS[key.curve.name],)
    elif isinstance(key, Ed25519PublicKey):
        algorithms = ("EdDSA",)
    else:
        # A shared secret, a private key or a curve of its own: nothing that a public document should hold.
        return None
    named = described.get("alg")
    if named is not None:
        algorithms = tuple(algorithm for algorithm in algorithms if algorithm == named)
    key_id = described.get("kid")
    return PublicKey(key_id if isinstance(key_id, str) else None, algorithms, key)


def _some_algorithm(described: Mapping[object, object]) -> str:
    """One of the kind's, so that the key is read: which of them it may be used for is decided above."""
    kind, curve = described.get("kty"), described.get("crv")
    return {"RSA": "RS256", "OKP": "EdDSA"}.get(str(kind)) or {"P-384": "ES384", "P-521": "ES512"}.get(
        str(curve), "ES256"
    )


class PublicKeys(Protocol):
    """The source of a provider's keys, which change from time to time."""

    def current(self) -> KeySet: ...

    def missed(self) -> None:
        """A token was signed by a key that is not among them: perhaps there are new ones."""


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    """An identity provider, and the rights that its tokens give."""

    issuer: str
    audiences: tuple[str, ...]
    keys: PublicKeys = field(repr=False)
    roles: Sequence[Role] = WELL_KNOWN_ROLES

    def of_namespace(self, name: str, roles: Sequence[Role] = ()) -> TrustedIssuer:
        """With the roles that are assigned in this namespace, and for tokens that are for it alone."""
        audiences = self.audiences
        if audiences == DEFAULT_AUDIENCES:
            audiences = (*audiences, f"https://{name.lower()}.servicebus.windows.net")
        return replace(self, audiences=audiences, roles=[*self.roles, *roles])

    def of_resource_manager(self) -> TrustedIssuer:
        """For requests to the resource manager (arm/), whose clients ask for tokens with another audience.

        An audience that the operator has set is the only one there too.
        """
        if not set(DEFAULT_AUDIENCES) <= set(self.audiences):
            return self
        return replace(self, audiences=(*self.audiences, *RESOURCE_MANAGER_AUDIENCES))

    def reaching(self, path: str) -> TrustedIssuer:
        """Only with the roles whose scope covers `path` (auth/key_ring.py has the same for keys)."""
        return replace(self, roles=[role for role in self.roles if covers(role.scope, entity_path(path))])

    def rights(self, text: str, path: str, now: Instant) -> tuple[Right, Instant, str]:
        """What the bearer of a token may do to `path`, until when, and who it is.

        `Unauthorized` gives the reason.
        """
        claims, expires_at = self._checked(text, now)
        rights = reduce(or_, (role.rights for role in self._held(claims, path)), Right(0))
        if not rights:
            raise Unauthorized(
                f"No role in the token, and none assigned to its bearer, gives a right over "
                f"'{path or 'the namespace'}'.{_why_no_groups(claims)}",
                sub_code=INVALID_AUDIENCE,
            )
        return rights, expires_at, _subject(claims)

    def scopes(self, text: str, now: Instant) -> Iterator[tuple[str, Right, Instant, str]]:
        """The same for every scope over which the bearer has a right: the scope comes first."""
        claims, expires_at = self._checked(text, now)
        held: dict[str, Right] = {}
        for role in self.roles:
            if role.is_held(claims):
                held[role.scope] = held.get(role.scope, Right(0)) | role.rights
        for scope, rights in held.items():
            yield scope, rights, expires_at, _subject(claims)

    def _checked(self, text: str, now: Instant) -> tuple[Mapping[str, object], Instant]:
        """The claims of a good token, and its end."""
        claims = self._proven(text)
        expires_at = self._check_times(claims, now)
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in issuer_names(self.issuer):
            raise Unauthorized("The token is from another issuer.", sub_code=INVALID_SIGNATURE)
        named = claims.get("aud")
        meant = named if isinstance(named, list) else [named]
        if not any(isinstance(each, str) and _same_audience(each, self.audiences) for each in meant):
            raise Unauthorized("The token is for another audience.", sub_code=INVALID_AUDIENCE)
        return claims, expires_at

    def _held(self, claims: Mapping[str, object], path: str) -> Iterator[Role]:
        for role in self.roles:
            if covers(role.scope, path) and role.is_held(claims):
                yield role

    def _proven(self, text: str) -> Mapping[str, object]:
        """The claims of a token that one of the provider's keys signed."""
        if len(text) > TOKEN_LENGTH_MAX:
            raise Unauthorized(
                f"The token has {len(text)} characters; at most {TOKEN_LENGTH_MAX} are read.",
                sub_code=MALFORMED,
            )
        try:
            header = jwt.get_unverified_header(text)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Unauthorized("The token is not a JWT that can be read.", sub_code=MALFORMED) from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
            raise Unauthorized(
                f"The token's signature is of the kind '{str(algorithm)[:20]}'; accepted are "
                f"{', '.join(_ALGORITHMS)}.",
                sub_code=INVALID_SIGNATURE,
            )
        for key in self.keys.current().fitting(key_id, algorithm):
            try:
                # Times, issuer and audience are checked by the caller, against a clock that is handed in.
                return jwt.decode(text, key.key, algorithms=[algorithm], options=_SIGNATURE_ONLY)
            except (jwt.PyJWTError, ValueError, RecursionError):
                continue
        self.keys.missed()
        raise Unauthorized(
            "The token's signature is not valid: no key of the issuer made it.", sub_code=INVALID_SIGNATURE
        )

    def _check_times(self, claims: Mapping[str, object], now: Instant) -> Instant:
        expires_at = _instant(claims, "exp")
        if expires_at is None:
            raise Unauthorized("The token has no end: 'exp' is missing.", sub_code=MALFORMED)
        if expires_at <= now:
            raise Unauthorized("The token has expired.", sub_code=EXPIRED)
        for name in ("nbf", "iat"):
            begins_at = _instant(claims, name)
            if begins_at is not None and begins_at > now + CLOCK_SKEW_MS:
                raise Unauthorized(f"The token's time has not come yet: '{name}'.", sub_code=EXPIRED)
        return expires_at


_ALGORITHMS: Final = (*_RSA_ALGORITHMS, *_CURVE_ALGORITHMS.values(), "EdDSA")
_SIGNATURE_ONLY: Final[Options] = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


def _subject(claims: Mapping[str, object]) -> str:
    """Who the token is about: Entra's applications are told apart by `oid` or `appid` without a `sub`."""
    named = (claims.get(name) for name in ("sub", "oid", "appid"))
    return f"jwt:{next((str(each)[:100] for each in named if each), '')}"


def _why_no_groups(claims: Mapping[str, object]) -> str:
    """Entra leaves the groups out of a token if there are too many, and says where to ask for them."""
    left_out = claims.get("hasgroups") is True or "groups" in str(claims.get("_claim_names", ""))
    return " The token does not list the groups of its bearer: they are too many." if left_out else ""


@cache
def issuer_names(issuer: str) -> frozenset[str]:
    """All names of the issuer: a tenant of Entra ID has two."""
    found = _TENANT.fullmatch(issuer)
    if found is None:
        return frozenset({issuer})
    host, tenant = found[1].lower(), found[2]
    login = "login.microsoftonline.com" if host == "sts.windows.net" else host
    return frozenset({issuer, f"https://sts.windows.net/{tenant}/", f"https://{login}/{tenant}/v2.0"})


def _same_audience(named: str, audiences: Iterable[str]) -> bool:
    """Entra writes some audiences with a slash at the end and some without."""
    return any(named.rstrip("/") == audience.rstrip("/") for audience in audiences)


def _instant(claims: Mapping[str, object], name: str) -> Instant | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unauthorized(f"The token's '{name}' is not a time in seconds.", sub_code=MALFORMED)
    return Instant(int(min(max(value, 0), EXPIRY_MAX_S) * 1000))
