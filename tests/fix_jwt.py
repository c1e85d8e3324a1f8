"""An identity provider for tests: generated keys, their JWKS document, and tokens signed with them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import jwt
from azure.core.credentials import AccessToken
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

__all__ = ["AUDIENCE", "ISSUER", "OWNER", "RECEIVER", "SENDER", "AsyncCredential", "Credential", "Provider"]

ISSUER = "https://login.example/tenant/v2.0"
AUDIENCE = "https://servicebus.azure.net"
OWNER = "Azure Service Bus Data Owner"
SENDER = "Azure Service Bus Data Sender"
RECEIVER = "Azure Service Bus Data Receiver"

MAKERS = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "PS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


@dataclass
class Provider:
    """With one key, of the kind that `algorithm` needs."""

    algorithm: str = "RS256"
    key_id: str = "key-1"
    key: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.key = MAKERS[self.algorithm]()

    @property
    def jwk(self) -> dict[str, Any]:
        public = get_default_algorithms()[self.algorithm].to_jwk(self.key.public_key(), as_dict=True)
        return {**public, "kid": self.key_id, "use": "sig"}

    @property
    def document(self) -> str:
        return json.dumps({"keys": [self.jwk]})

    def token(self, *roles: str, **claims: Any) -> str:
        """Valid for an hour unless `claims` says otherwise. A claim that is None is left out."""
        at = int(time.time())
        whole = {"iss": ISSUER, "aud": AUDIENCE, "exp": at + 3600, "nbf": at, "iat": at, "roles": list(roles)}
        stated = {name: value for name, value in (whole | claims).items() if value is not None}
        return jwt.encode(stated, self.key, self.algorithm, headers={"kid": self.key_id})


class Credential:
    """Like the credentials of `azure.identity`: returns a token on request."""

    def __init__(self, provider: Provider, *roles: str, lifetime_s: int = 3600, **claims: Any) -> None:
        self._provider = provider
        self._roles = roles
        self._lifetime_s = lifetime_s
        self._claims = claims

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net//.default",), scopes
        ends_at = int(time.time()) + self._lifetime_s
        return AccessToken(self._provider.token(*self._roles, exp=ends_at, **self._claims), ends_at)


class AsyncCredential(Credential):
    async def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return super().get_token(*scopes, **options)

    async def close(self) -> None: ...
