"""The SASL layer that comes before AMQP: headers, mechanisms, init, outcome.

All mechanisms that we offer take one message from the client. The application decides
whether the response is good (`Connection.sasl_outcome`); this module knows the exchange, and
the format of PLAIN. A new AMQP header follows: handshake.py.
"""

from __future__ import annotations

from typing import Final

from bendybus.amqp.conditions import ILLEGAL_STATE
from bendybus.amqp.frames import SASL as SASL_FRAME
from bendybus.amqp.frames import SASL_HEADER, encode_frame
from bendybus.amqp.performatives import (
    SASL_AUTH,
    SASL_OK,
    Performative,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.events import SaslInitReceived
from bendybus.engine.states import SASL, SaslInput, SaslState
from bendybus.errors import ProtocolError, Unauthorized

__all__ = ["SASL_FRAME_SIZE_MAX", "SaslClient", "SaslServer", "plain_credentials", "plain_response"]

# "The maximum size of a SASL frame is defined by MIN-MAX-FRAME-SIZE" [AMQP 5.3.1], 512 bytes,
# which a long host name and a long key already fill. Unauthenticated peers get no more than this.
SASL_FRAME_SIZE_MAX: Final = 8_192


def plain_response(username: str, password: str) -> bytes:
    """What a client of mechanism PLAIN sends [RFC 4616]."""
    return b"\x00" + username.encode() + b"\x00" + password.encode()


def plain_credentials(response: bytes) -> tuple[str, str]:
    """User name and password from a PLAIN response; the identity to act for is ignored."""
    parts = response.split(b"\x00")
    try:
        _, username, password = (part.decode() for part in parts)
    except ValueError:
        raise Unauthorized("The response to PLAIN is not identity, user name and password.") from None
    return username, password


class _Exchange:
    """The state of one side. `output` collects the bytes to write."""

    __slots__ = ("_config", "_output", "state")

    def __init__(self, config: ConnectionConfig, output: list[bytes | memoryview]) -> None:
        self._config = config
        self._output = output
        self.state = SaslState.START

    def _advance(self, happening: SaslInput) -> None:
        try:
            self.state = SASL[self.state, happening]
        except KeyError:
            raise ProtocolError(
                ILLEGAL_STATE, f"SASL is {self.state.value} and cannot take {happening.value}"
            ) from None

    def _write(self, performative: Performative) -> None:
        self._output.append(encode_frame(0, performative, frame_type=SASL_FRAME))

    def _misplaced(self, performative: Performative) -> ProtocolError:
        return ProtocolError(
            ILLEGAL_STATE, f"{type(performative).__name__} came while SASL is {self.state.value}"
        )


class SaslServer(_Exchange):
    __slots__ = ("_init",)

    def __init__(self, config: ConnectionConfig, output: list[bytes | memoryview]) -> None:
        super().__init__(config, output)
        self._init: SaslInit | None = None

    def receive_header(self) -> None:
        self._advance(SaslInput.RECV_HEADER)
        self._output.append(SASL_HEADER)
        self._write(SaslMechanisms(list(self._config.sasl_mechanisms)))
        self._advance(SaslInput.SEND_MECHANISMS)

    def receive(self, performative: Performative) -> SaslInitReceived | None:
        """The client's choice, when it is complete."""
        match performative:
            case SaslInit(mechanism=mechanism, initial_response=response, hostname=hostname):
                self._advance(SaslInput.RECV_INIT)
                if mechanism not in self._config.sasl_mechanisms:
                    self.decide(ok=False)
                    raise Unauthorized(f"SASL mechanism {mechanism} is not offered here.")
                if response is None and mechanism == "PLAIN":
                    # The client speaks first in PLAIN; an empty challenge asks it to [RFC 4422 5].
                    self._init = performative
                    self._write(SaslChallenge(b""))
                    self._advance(SaslInput.SEND_CHALLENGE)
                    return None
                return SaslInitReceived(mechanism, response or b"", hostname)
            case SaslResponse(response=response):
                self._advance(SaslInput.RECV_RESPONSE)
                assert self._init is not None, "a challenge was sent for it"
                return SaslInitReceived(self._init.mechanism, response, self._init.hostname)
            case _:
                raise self._misplaced(performative)

    def decide(self, *, ok: bool) -> None:
        self._advance(SaslInput.SEND_OUTCOME)
        self._write(SaslOutcome(SASL_OK if ok else SASL_AUTH))


class SaslClient(_Exchange):
    __slots__ = ()

    def start(self) -> None:
        self._output.append(SASL_HEADER)
        self._advance(SaslInput.SEND_HEADER)

    def receive_header(self) -> None:
        self._advance(SaslInput.RECV_HEADER)

    def receive(self, performative: Performative) -> None:
        match performative:
            case SaslMechanisms(sasl_server_mechanisms=offered):
                self._advance(SaslInput.RECV_MECHANISMS)
                mechanism = self._config.sasl_mechanism
                if mechanism is None or mechanism not in offered:
                    raise Unauthorized(f"SASL mechanism {mechanism} is not among {', '.join(offered)}.")
                self._write(SaslInit(mechanism, self._config.sasl_response, self._config.hostname))
                self._advance(SaslInput.SEND_INIT)
            case SaslOutcome(code=code):
                self._advance(SaslInput.RECV_OUTCOME)
                if code != SASL_OK:
                    raise Unauthorized(f"SASL mechanism {self._config.sasl_mechanism}: outcome {code}.")
            case _:
                raise self._misplaced(performative)
