"""Tokens: shared access signatures, JSON Web Tokens, key sets, connection strings (`auth/`).

The first byte says how the rest is used: as a token's text, as the claims of a JWT that a trusted key has
signed, as a key set, or as a connection string.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from bendybus.auth.claims import Claims, put_token
from bendybus.auth.connection_strings import ConnectionString
from bendybus.auth.jwt import KeySet, TrustedIssuer
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.paths import resource_path
from bendybus.auth.rights import Right
from bendybus.auth.roles import Role
from bendybus.auth.sas import SasToken, make_token, signer
from bendybus.errors import ArgumentError, ConfigError, Unauthorized
from bendybus.names import Instant
from fuzz.target import Target, refusals

ISSUER = "https://login.example/tenant"
AUDIENCE = "https://servicebus.azure.net"
KEY = "key-of-the-root-rule"
NOW = Instant(1_800_000_000_000)
LATER_S = NOW // 1000 + 600

SIGNING_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


class FixedKeys:
    def __init__(self) -> None:
        public = OKPAlgorithm.to_jwk(SIGNING_KEY.public_key(), as_dict=True)
        self._set = KeySet.parse({"keys": [{**public, "kid": "1", "use": "sig"}]})

    def current(self) -> KeySet:
        return self._set

    def missed(self) -> None: ...


@cache
def ring() -> KeyRing:
    return KeyRing([AccessRule.root(KEY)], TrustedIssuer(ISSUER, (AUDIENCE,), FixedKeys()))


def check(data: bytes) -> None:
    use = _USES[data[0] % len(_USES)] if data else _token
    use(data[1:])


def _token(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with refusals(Unauthorized):
        claim = put_token(ring(), text, "sb://namespace/queue", NOW)
        Claims().add(claim, NOW)
    with refusals(Unauthorized):
        put_token(ring(), "SharedAccessSignature " + text, text, NOW)
    with refusals(Unauthorized):
        token = SasToken.parse(text)
        list(token.key_names())
        assert token.expires_at >= 0
    # Whatever a resource is called, a token for it that was signed with the key is good.
    with refusals(Unauthorized):
        # '.' and '..' are refused as names.
        resource_path(text[:500])
        _check_made(text[:500])


def _check_made(resource: str) -> None:
    if resource:
        made = SasToken.parse(make_token(resource, "RootManageSharedAccessKey", KEY, LATER_S))
        signed = signer(made, ring())
        assert signed is not None
        assert signed.rights.allows(Right.MANAGE)


def _claims(data: bytes) -> None:
    signed = jwt.api_jws.encode(data, SIGNING_KEY, "EdDSA", headers={"kid": "1"})
    with refusals(Unauthorized):
        put_token(ring(), signed, "sb://namespace/queue", NOW)


def _key_set(data: bytes) -> None:
    # Who reads the document refuses what is not JSON (server/key_sets.py).
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    with refusals(ValueError):
        KeySet.parse(document)


def _connection_string(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with refusals(ArgumentError):
        parsed = ConnectionString.parse(text)
        assert ConnectionString.parse(parsed.text) == parsed
        assert isinstance(parsed.netloc, str)
    with refusals(ArgumentError):
        Role.parse(text)


_USES: tuple[Callable[[bytes], None], ...] = (_token, _claims, _key_set, _connection_string)

TARGET = Target(
    name="tokens",
    parses="shared access signatures, JWTs, key sets, connection strings",
    check=check,
    may_raise=(Unauthorized, ArgumentError, ConfigError, ValueError),
    share=120,
    words=tuple(
        word.encode()
        for word in (
            *("SharedAccessSignature ", "sr=", "&sig=", "&se=", "&skn=", "%2F", "%25", "Bearer ", "eyJ", "."),
            *('"iss":', '"aud":', '"exp":', '"nbf":', '"roles":[', '"Azure Service Bus Data Owner"', "1e400"),
            *(
                f'"{ISSUER}"',
                f'"{AUDIENCE}"',
                '{"keys":[{',
                '"kty":"RSA"',
                '"crv":"Ed25519"',
                '"alg":',
                '"kid":',
            ),
            *("Endpoint=sb://", ";SharedAccessKeyName=", ";SharedAccessKey=", ";EntityPath=", "[::1]", "NaN"),
        )
    ),
)
