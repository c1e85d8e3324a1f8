"""ChannelTokens: a token for every entity in use, put at `$cbs` and renewed before it ends."""

from __future__ import annotations

import math
import time
from typing import Final

from bendybus.auth.sas import SAS_PREFIX, make_token
from bendybus.client.channel import Channel
from bendybus.client.refusals import refusal_of_status
from bendybus.client.requests import Requests

__all__ = ["ChannelTokens"]

SAS_TYPE: Final = "servicebus.windows.net:sastoken"
JWT_TYPE: Final = "jwt"

# A token is renewed when this share of its life is left.
RENEW_AT: Final = 0.3


class ChannelTokens:
    """The tokens of one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._requests: Requests | None = None
        self._renew_at: dict[str, float] = {}
        self._busy = False
        channel.keep_fresh = self._renew_due

    def require(self, entity: str) -> None:
        """Make sure that there is a token for this entity, before a link to it is attached."""
        if self._renew_at.get(entity, 0.0) <= time.monotonic():
            self._put(entity)

    def _renew_due(self) -> None:
        if self._busy or not self._renew_at or self._channel.failure is not None:
            return
        now = time.monotonic()
        for entity, at in list(self._renew_at.items()):
            if at <= now:
                self._put(entity)

    def _put(self, entity: str) -> None:
        settings = self._channel.settings
        # Waiting for the answer must not call this again.
        self._busy = True
        try:
            if self._requests is not None and not self._requests.usable:
                # The server has ended one of the two links: both are made again.
                self._requests.close()
                self._requests = None
            if self._requests is None:
                self._requests = Requests(self._channel, "$cbs")
            audience = settings.audience(entity)
            lifetime_s = settings.token_lifetime_s
            expires_at = math.ceil(time.time()) + lifetime_s
            token = settings.signature or make_token(audience, settings.key_name, settings.key, expires_at)
            kind = SAS_TYPE if token.startswith(SAS_PREFIX) else JWT_TYPE
            properties = {"operation": "put-token", "type": kind, "name": audience}
            reply = self._requests.answer(self._requests.ask(properties, token))
        finally:
            self._busy = False
        told = reply.application_properties
        status = told.get("status-code")
        if not isinstance(status, int) or not 200 <= status < 300:
            code = status if isinstance(status, int) else 500
            what = f"logging in to '{entity}'"
            raise refusal_of_status(code, told.get("error-condition"), told.get("status-description"), what)
        self._renew_at[entity] = time.monotonic() + lifetime_s * (1 - RENEW_AT)
