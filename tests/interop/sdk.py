"""The official SDK, synchronous and asynchronous, behind one face, so that each test is written once.

The asynchronous one runs on a loop in a thread of its own; `Blocking` waits there for whatever it
returns. Nothing of the SDK is replaced or patched.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, cast

import pytest
from azure.core.async_paging import AsyncItemPaged
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
    aio,
)

from fix_server import Kind, ServerProcess

__all__ = [
    "BREAKS_CONNECTIONS",
    "CROSSWISE",
    "AsyncSdk",
    "SdkQueue",
    "LoopThread",
    "Sdk",
    "ConnectTo",
    "SyncSdk",
    "bodies",
    "open_all",
    "receive",
]

# A refusal is to be seen, not retried: by default that costs seconds.
OPTIONS: Final[dict[str, Any]] = {"retry_total": 0, "retry_backoff_factor": 0.05, "retry_backoff_max": 0.2}

# For tests that take seconds: each SDK on one kind of queue instead of both on both.
CROSSWISE: Final = pytest.mark.parametrize(
    ("sdk", "kind"), [("sync", Kind.UNPARTITIONED), ("async", Kind.PARTITIONED)], indirect=True
)

# For tests that break connections: the SDK leaves the socket of a broken one to the garbage collector.
BREAKS_CONNECTIONS: Final = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# Long enough for a loaded machine; who waits for something that comes does not wait so long.
PATIENCE_S: Final = 20


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="sdk-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S * 3)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Blocking:
    """An object of the asynchronous SDK, used as if it were its synchronous sibling."""

    def __init__(self, inner: Any, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if isinstance(value, _HANDLES):
            return Blocking(value, self._thread)
        return self._blocking(value) if callable(value) else value

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            # Called on the loop: some of these methods make tasks or look for the running loop.
            result = method(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        def blocking(*args: Any, **kwargs: Any) -> Any:
            unwrapped = [arg._inner if isinstance(arg, Blocking) else arg for arg in args]
            result = self._thread.run(call(*unwrapped, **kwargs))
            return Blocking(result, self._thread) if isinstance(result, _HANDLES) else result

        return blocking

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Any]:
        iterator = self._inner.__aiter__()
        while True:
            try:
                yield self._thread.run(iterator.__anext__())
            except StopAsyncIteration:
                return


# What the asynchronous SDK returns that has to be awaited itself; messages and batches have not.
_HANDLES: Final = (
    aio.ServiceBusClient,
    aio.ServiceBusSender,
    aio.ServiceBusReceiver,
    aio.ServiceBusSession,
    AsyncItemPaged,
)


class Sdk(Protocol):
    """What differs between the two: how a client and a renewer are made."""

    def client(self, connection_string: str, **options: Any) -> ServiceBusClient: ...

    def client_with_credential(self, host: str, credential: Any, **options: Any) -> ServiceBusClient: ...

    def renewer(self) -> AutoLockRenewer: ...


class SyncSdk:
    def client(self, connection_string: str, **options: Any) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(connection_string, **{**OPTIONS, **options})

    def client_with_credential(self, host: str, credential: Any, **options: Any) -> ServiceBusClient:
        return ServiceBusClient(host, credential, **{**OPTIONS, **options})

    def renewer(self) -> AutoLockRenewer:
        return AutoLockRenewer()


class AsyncSdk:
    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def client(self, connection_string: str, **options: Any) -> ServiceBusClient:
        client = aio.ServiceBusClient.from_connection_string(connection_string, **{**OPTIONS, **options})
        return cast(ServiceBusClient, Blocking(client, self._thread))

    def client_with_credential(self, host: str, credential: Any, **options: Any) -> ServiceBusClient:
        client = aio.ServiceBusClient(host, credential, **{**OPTIONS, **options})
        return cast(ServiceBusClient, Blocking(client, self._thread))

    def renewer(self) -> AutoLockRenewer:
        return cast(AutoLockRenewer, Blocking(aio.AutoLockRenewer(), self._thread))


class SdkQueue:
    """One queue with a sender and receivers, opened when first used.

    Opening a link costs half a second and closing a receiver up to one, both asleep inside the SDK;
    so an object whose queue is left empty serves the next test as well (conftest.py).
    """

    def __init__(self, sdk: Sdk, client: ServiceBusClient, queue: str) -> None:
        self.sdk = sdk
        self.client = client
        self.name = queue
        self._handles: dict[str, Any] = {}

    @property
    def sender(self) -> ServiceBusSender:
        # Without the thread that would keep an idle link alive, and that closing would wait for.
        options = {"keep_alive": 0}
        return cast(ServiceBusSender, self._handle("sender", self.client.get_queue_sender, **options))

    @property
    def receiver(self) -> ServiceBusReceiver:
        return cast(ServiceBusReceiver, self._handle("receiver", self.client.get_queue_receiver))

    @property
    def dead_letters(self) -> ServiceBusReceiver:
        options = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER}
        return cast(ServiceBusReceiver, self._handle("dead", self.client.get_queue_receiver, **options))

    def another_receiver(self, **options: Any) -> ServiceBusReceiver:
        """One more, with these options of the SDK."""
        name = f"receiver {len(self._handles)}"
        return cast(ServiceBusReceiver, self._handle(name, self.client.get_queue_receiver, **options))

    def _handle(self, name: str, make: Callable[..., Any], **options: Any) -> Any:
        if name not in self._handles:
            self._handles[name] = make(self.name, **options)
        return self._handles[name]

    def send(self, *contents: str, **properties: Any) -> None:
        """One message for each of these texts, sent one by one."""
        for content in contents:
            self.sender.send_messages(ServiceBusMessage(content, **properties))

    def receive(self, count: int = 1) -> list[ServiceBusReceivedMessage]:
        """So many messages, which must come."""
        return receive(self.receiver, count)

    def receive_one(self) -> ServiceBusReceivedMessage:
        (message,) = self.receive(1)
        return message

    def receive_dead_letter(self) -> ServiceBusReceivedMessage:
        (message,) = receive(self.dead_letters, 1)
        return message

    def complete(self, *messages: ServiceBusReceivedMessage) -> None:
        for message in messages:
            self.receiver.complete_message(message)

    def is_empty(self) -> bool:
        """Whether a receiver would get nothing, now or later."""
        return not self.receiver.peek_messages(1, sequence_number=1) and not (
            "dead" in self._handles and self.dead_letters.peek_messages(1, sequence_number=1)
        )

    def close_with(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Close while others work: each waits for a thread of the SDK that wakes once a second."""
        return [pool.submit(handle.close) for handle in self._handles.values()]


ConnectTo: TypeAlias = Callable[[ServerProcess], SdkQueue]


def open_all(pool: ThreadPoolExecutor, *sdk_queues: SdkQueue) -> None:
    """Open senders and receivers now, all at once."""
    handles = [handle for sdk_queue in sdk_queues for handle in (sdk_queue.sender, sdk_queue.receiver)]
    list(pool.map(lambda handle: handle.__enter__(), handles))


def receive(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """So many messages, which must come."""
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < count:
        more = receiver.receive_messages(count - len(messages), max_wait_time=PATIENCE_S)
        assert more, f"only {len(messages)} of {count} messages came in {PATIENCE_S} s"
        messages += more
    return messages


def bodies(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]
