"""Transactions by Apache Qpid Proton, an AMQP 1.0 client that is neither ours nor Microsoft's.

Not installed by `make test`, since it is compiled on the spot; `make interop` installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from fix_server import ServerProcess, StartServer

proton = pytest.importorskip("proton", reason="python-qpid-proton is not installed (make interop)")
handlers = pytest.importorskip("proton.handlers")
reactor = pytest.importorskip("proton.reactor")

KINDS = pytest.mark.parametrize("partitioned", [False, True], ids=["1 partition", "16 partitions"])
PARTITION_KEY = "x-opt-partition-key"
TRANSACTIONAL_STATE = 0x34
PATIENCE_S = 30


@pytest.fixture
def server(start_server: StartServer, partitioned: bool) -> ServerProcess:
    return start_server({"q": {"EnablePartitioning": partitioned}})


def url(server: ServerProcess) -> str:
    """Logged in by SASL PLAIN, as a client does that knows nothing of `$cbs`."""
    fields = dict(field.split("=", 1) for field in server.connection_string.split(";"))
    name, key = fields["SharedAccessKeyName"], quote(fields["SharedAccessKey"], safe="")
    return f"amqp://{name}:{key}@127.0.0.1:{server.port}"


def message(body: str, key: str | None = "k") -> Any:
    annotations = None if key is None else {proton.symbol(PARTITION_KEY): key}
    return proton.Message(body=body, annotations=annotations)


class Actor(handlers.MessagingHandler, handlers.TransactionHandler):  # type: ignore[misc, name-defined]
    """Written as a play: each act waits for what it yields, and is told what came of it."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.auto_settle = False
        self.url = url(server)
        self.heard: list[str] = []
        self.failure: str | None = None
        self._play: Iterator[str] | None = None
        self._awaited = ""

    def play(self) -> Iterator[str]:
        """What is done, with the name of the event that is then waited for."""
        raise NotImplementedError

    def run(self) -> None:
        reactor.Container(self).run()
        assert self.failure is None, self.failure
        assert self._awaited == "the end", f"still waiting for {self._awaited} after {self.heard}"

    def _go_on(self, event: str) -> None:
        self.heard.append(event)
        if self._play is not None and event == self._awaited:
            self._awaited = next(self._play, "the end")
            if self._awaited == "the end":
                self._play = None
                self._timer.cancel()
                self.connection.close()

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = self.container.connect(
            self.url, allowed_mechs="PLAIN", allow_insecure_mechs=True, reconnect=False
        )
        self.sender = self.container.create_sender(self.connection, "q")
        self.receiver = self.container.create_receiver(self.connection, "q")
        self._timer = self.container.schedule(PATIENCE_S, self)
        self._play = self.play()
        self._awaited = "sendable"

    def on_sendable(self, event: Any) -> None:
        if event.sender == self.sender and "sendable" not in self.heard:
            self._awaited = next(self._play) if self._play is not None else ""
            self.heard.append("sendable")

    def on_timer_task(self, event: Any) -> None:
        self.connection.close()

    def on_message(self, event: Any) -> None:
        self.delivery, self.message = event.delivery, event.message
        self._go_on("message")

    def on_accepted(self, event: Any) -> None:
        if event.sender == self.sender:
            self._go_on("accepted")

    def on_settled(self, event: Any) -> None:
        # Proton does not look into the state of a transaction for the outcome.
        if event.sender == self.sender and event.delivery.remote_state == TRANSACTIONAL_STATE:
            self._go_on("accepted")

    def on_rejected(self, event: Any) -> None:
        if event.sender == self.sender:
            self.refused = event.delivery.remote.condition
            self._go_on("rejected")

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self._go_on("declared")

    def on_transaction_committed(self, event: Any) -> None:
        self._go_on("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self._go_on("aborted")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self._go_on("declare failed")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._go_on("commit failed")

    def on_transport_error(self, event: Any) -> None:
        self.failure = str(event.transport.condition)

    def on_link_error(self, event: Any) -> None:
        self.failure = str(event.link.remote_condition)

    # -- words for the acts -------------------------------------------------------

    def declare(self) -> str:
        self.container.declare_transaction(self.connection, handler=self)
        return "declared"

    def send(self, body: str, key: str | None = "k", *, inside: bool = True) -> str:
        if inside:
            self.transaction.send(self.sender, message(body, key))
        else:
            self.sender.send(message(body, key))
        return "accepted"

    def receive(self) -> str:
        self.receiver.flow(1)
        return "message"


@pytest.mark.row("P-23")
@KINDS
def test_a_commit_sends_and_settles_together(server: ServerProcess) -> None:
    class Play(Actor):
        def play(self) -> Iterator[str]:
            yield self.send("old", inside=False)
            yield self.receive()
            assert self.message.body == "old"
            yield self.declare()
            yield self.send("new")
            self.transaction.accept(self.delivery)
            self.transaction.commit()
            yield "committed"
            yield self.receive()
            assert self.message.body == "new"
            self.accept(self.delivery)
            self.delivery.settle()

    Play(server).run()


@pytest.mark.row("P-23")
@KINDS
def test_a_rollback_sends_nothing(server: ServerProcess) -> None:
    class Play(Actor):
        def play(self) -> Iterator[str]:
            yield self.declare()
            yield self.send("never")
            self.transaction.abort()
            yield "aborted"
            yield self.send("first of all", inside=False)
            yield self.receive()
            assert self.message.body == "first of all"

    Play(server).run()


@pytest.mark.row("P-19", "P-20")
@pytest.mark.parametrize("partitioned", [True], ids=["16 partitions"])
@pytest.mark.parametrize("second", [None, "another"], ids=["no key", "two keys"])
def test_a_partitioned_queue_wants_one_key(server: ServerProcess, second: str | None) -> None:
    class Play(Actor):
        def play(self) -> Iterator[str]:
            yield self.declare()
            yield self.send("one", "k")
            self.send("two", second)
            yield "rejected"
            assert self.refused.name == "amqp:not-allowed"
            self.transaction.commit()
            yield "commit failed"

    Play(server).run()
