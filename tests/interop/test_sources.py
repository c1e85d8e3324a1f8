"""What a receiver's source asks for, frame by frame: to browse, and messages of a kind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from bendybus.amqp.message import DecodedMessage, Header, Properties, decode_message, encode_message
from bendybus.amqp.performatives import (
    SND_SETTLED,
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
)
from bendybus.amqp.types import Described, Symbol, Timestamp, ULong
from bendybus.engine.deliveries import Delivery
from fix_client import Client, Endpoint, LinkRefused, Receiver
from fix_server import ServerProcess, namespace

KINDS = ("plain", "parts")
QUEUES = 30

SELECTOR = "apache.org:selector-filter:string"
SELECTOR_CODE = ULong(0x0000_468C_0000_0004)
NO_LOCAL_CODE = ULong(0x0000_468C_0000_0003)
SESSION_FILTER = Symbol("com.microsoft:session-filter")


@pytest.fixture(scope="module")
def _namespace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    queues = {
        f"{kind}-{number}": {"EnablePartitioning": kind == "parts", "LockDuration": "PT1M"}
        for kind in KINDS
        for number in range(QUEUES)
    }
    sessions = {f"{kind}-sessions": {"EnablePartitioning": kind == "parts", "RequiresSession": True}
                for kind in KINDS}  # fmt: skip
    topics = [
        {
            "Name": f"{kind}-topic",
            "Properties": {"EnablePartitioning": kind == "parts"},
            "Subscriptions": [{"Name": "s", "Properties": {}}],
        }
        for kind in KINDS
    ]
    server = ServerProcess(
        tmp_path_factory.mktemp("server"),
        namespace({**queues, **sessions}, {"plain-0": [LISTENER, SENDER]}, topics),
    )
    server.start()
    yield server
    server.stop()
    server.refuse_trouble()


LISTENER = {"Name": "listener", "PrimaryKey": "listen-key", "Rights": ["Listen"]}
SENDER = {"Name": "sender", "PrimaryKey": "send-key", "Rights": ["Send"]}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def unused() -> dict[str, Iterator[int]]:
    """The numbers of the queues, by kind, that no test has had yet."""
    return {kind: iter(range(1, QUEUES)) for kind in KINDS}


@pytest.fixture
def queue(kind: str, unused: dict[str, Iterator[int]]) -> str:
    """A queue of each kind that no other test uses."""
    return f"{kind}-{next(unused[kind])}"


@pytest.fixture
def client(server: ServerProcess, loop_runner: asyncio.Runner) -> Iterator[Client]:
    client = loop_runner.run(Client.connect(Endpoint.parse(server.connection_string)))
    yield client
    loop_runner.run(client.close())


def message(
    text: str, properties: Properties | None = None, header: Header | None = None, **user: object
) -> bytes:
    return encode_message(
        header=header, properties=properties, application_properties=user or None, data=text.encode()
    )


async def send(client: Client, address: str, *messages: bytes) -> None:
    """One at a time, so that they are spread over the partitions."""
    sender = await client.sender(address)
    for each in messages:
        assert await sender.send(each) == [Accepted()]
    sender.detach()


def decoded(deliveries: Sequence[Delivery]) -> list[DecodedMessage]:
    return [decode_message(delivery.payload) for delivery in deliveries]


def texts(deliveries: Sequence[Delivery]) -> list[str]:
    return [b"".join(each.data or ()).decode() for each in decoded(deliveries)]


def sequence_numbers(deliveries: Sequence[Delivery]) -> list[int]:
    return [each.message_annotations["x-opt-sequence-number"] for each in decoded(deliveries)]


def selecting(text: str) -> dict[str, object]:
    """As Qpid JMS and rhea write it."""
    return {Symbol("jms-selector"): Described(SELECTOR_CODE, text)}


async def browser(client: Client, address: str, **options: object) -> Receiver:
    return await client.receiver(address, deletes=True, distribution_mode=Symbol("copy"), **options)  # type: ignore[arg-type]


async def browsed(client: Client, address: str, **options: object) -> list[Delivery]:
    """What a JMS queue browser sees: all there is, until its drain is answered."""
    link = await browser(client, address, **options)
    found = await link.drain(1000)
    link.detach()
    return found


def answered_filter(receiver: Receiver) -> dict[str, object]:
    assert receiver.link.remote is not None
    source = receiver.link.remote.source
    assert isinstance(source, Source)
    return source.filter or {}


# -- browsing ---------------------------------------------------------------------


async def test_a_browser_deletes_nothing(client: Client, queue: str) -> None:
    sent = [f"m{number}" for number in range(40)]
    await send(client, queue, *map(message, sent))
    for _ in range(2):
        found = await browsed(client, queue)
        assert sorted(texts(found)) == sorted(sent)
        assert sequence_numbers(found) == sorted(sequence_numbers(found))
    receiver = await client.receiver(queue, deletes=True)
    assert sorted(texts(await receiver.drain(1000))) == sorted(sent)
    assert await browsed(client, queue) == []


async def test_a_browser_goes_on_where_its_credit_ended(client: Client, queue: str) -> None:
    sent = [f"m{number}" for number in range(30)]
    await send(client, queue, *map(message, sent))
    link = await browser(client, queue)
    found = [text for _ in range(4) for text in texts(await link.drain(9))]
    assert sorted(found) == sorted(sent)


async def test_a_browser_that_stays_is_shown_what_comes_later(client: Client, queue: str) -> None:
    await send(client, queue, message("a"))
    link = await browser(client, queue, credit=100)
    assert texts(await link.receive()) == ["a"]
    for text in ("b", "c"):
        await send(client, queue, message(text))
        assert texts(await link.receive()) == [text]


async def test_a_browser_sees_locked_messages_and_locks_none(client: Client, queue: str) -> None:
    await send(client, queue, message("locked"), message("free"))
    receiver = await client.receiver(queue, credit=1)
    (locked,) = await receiver.receive()
    assert len(await browsed(client, queue)) == 2
    other = await client.receiver(queue)
    (free,) = await other.drain(10)
    assert decoded([free])[0].header.delivery_count == 0
    assert {*texts([locked]), *texts([free])} == {"locked", "free"}


async def test_dispositions_of_browsed_messages_change_nothing(client: Client, queue: str) -> None:
    await send(client, queue, message("a"), message("b"), message("c"), message("d"))
    link = await client.receiver(queue, distribution_mode=Symbol("copy"))
    found = await link.drain(10)
    assert len(found) == 4
    outcomes = (Accepted(), Released(), Modified(delivery_failed=True), Rejected())
    for delivery, outcome in zip(found, outcomes, strict=True):
        assert await link.settled_as([delivery], outcome) == [outcome]
    again = await browsed(client, queue)
    assert sorted(texts(again)) == ["a", "b", "c", "d"]
    assert {each.header.delivery_count for each in decoded(again)} == {0}
    assert await browsed(client, f"{queue}/$deadletterqueue") == []


async def test_dead_letters_and_subscriptions_are_browsed_as_queues_are(client: Client, queue: str) -> None:
    await send(client, queue, message("dead"))
    receiver = await client.receiver(queue, credit=1)
    await receiver.settled_as(await receiver.receive(), Rejected())
    topic = queue.split("-", maxsplit=1)[0] + "-topic"
    await send(client, topic, message("copy"))
    for address, text in ((f"{queue}/$deadletterqueue", "dead"), (f"{topic}/subscriptions/s", "copy")):
        for _ in range(2):
            assert texts(await browsed(client, address)) == [text]


async def test_all_sessions_or_one_can_be_browsed_without_a_lock(client: Client, queue: str) -> None:
    queue = queue.split("-", maxsplit=1)[0] + "-sessions"
    await send(client, queue, *(message(id_, Properties(group_id=id_)) for id_ in ("ada", "bob")))
    holder = await client.receiver(queue, filter={SESSION_FILTER: "ada"})
    assert sorted(texts(await browsed(client, queue))) == ["ada", "bob"]
    assert texts(await browsed(client, queue, filter={SESSION_FILTER: "ada"})) == ["ada"]
    with pytest.raises(LinkRefused, match="name one"):
        await browser(client, queue, filter={SESSION_FILTER: None})
    assert texts(await holder.drain(10)) == ["ada"]


async def test_to_browse_needs_the_right_to_listen(server: ServerProcess) -> None:
    endpoint = Endpoint.parse(server.connection_string)

    for rule, allowed in ((LISTENER, True), (SENDER, False)):
        name, key = str(rule["Name"]), str(rule["PrimaryKey"])
        async with await Client.connect(Endpoint(endpoint.host, endpoint.port, name, key)) as client:
            if allowed:
                assert await browsed(client, "plain-0") == []
            else:
                with pytest.raises(LinkRefused, match="unauthorized"):
                    await browser(client, "plain-0")


async def test_an_unknown_distribution_mode_is_refused(client: Client, queue: str) -> None:
    with pytest.raises(LinkRefused) as refused:
        await client.receiver(queue, distribution_mode=Symbol("sideways"))
    assert refused.value.condition == "amqp:invalid-field"
    assert (await client.receiver(queue, distribution_mode=Symbol("move"))).link.attached


# -- selectors --------------------------------------------------------------------


@pytest.mark.parametrize("deletes", [False, True], ids=["peek-lock", "receive and delete"])
async def test_a_selective_receiver_gets_what_matches_and_leaves_the_rest(
    client: Client, queue: str, deletes: bool
) -> None:
    await send(client, queue, *(message(str(n), n=n, even=n % 2 == 0) for n in range(30)))
    asked = selecting("even AND n BETWEEN 10 AND 19")
    receiver = await client.receiver(queue, filter=asked, deletes=deletes)
    assert answered_filter(receiver) == asked
    found = await receiver.drain(1000)
    assert sorted(map(int, texts(found))) == [10, 12, 14, 16, 18]
    if not deletes:
        await receiver.settled_as(found)
    rest = await (await client.receiver(queue)).drain(1000)
    assert len(rest) == 25
    assert {each.header.delivery_count for each in decoded(rest)} == {0}


async def test_a_selective_receiver_is_woken_for_each_message_that_matches(
    client: Client, queue: str
) -> None:
    receiver = await client.receiver(queue, filter=selecting("colour = 'red'"), credit=10)
    for number in range(5):
        await send(client, queue, message("no", colour="blue"), message(f"{number}", colour="red"))
        found = await receiver.receive()
        assert texts(found) == [str(number)]
        await receiver.settled_as(found)
    assert len(await browsed(client, queue)) == 5


async def test_two_selective_receivers_share_a_queue_by_kind(client: Client, queue: str) -> None:
    red = await client.receiver(queue, filter=selecting("colour = 'red'"), credit=100)
    blue = await client.receiver(queue, filter=selecting("colour <> 'red'"), credit=100)
    colours = ["red", "blue"] * 10
    await send(client, queue, *(message(colour, colour=colour) for colour in colours))
    assert texts(await red.receive(10)) == ["red"] * 10
    assert texts(await blue.receive(10)) == ["blue"] * 10


async def test_what_is_given_back_is_found_again_in_its_place(client: Client, queue: str) -> None:
    await send(client, queue, *(message(str(n), kind="no" if n % 3 else "yes") for n in range(12)))
    receiver = await client.receiver(queue, filter=selecting("kind = 'yes'"))
    first = await receiver.drain(100)
    assert len(first) == 4
    outcomes = (Released(), Modified(delivery_failed=True), Released(), Accepted())
    for delivery, outcome in zip(first, outcomes, strict=True):
        await receiver.settled_as([delivery], outcome)
    again = await receiver.drain(100)
    assert sorted(texts(again)) == sorted(texts(first[:3]))
    counts = {
        text: each.header.delivery_count for text, each in zip(texts(again), decoded(again), strict=True)
    }
    assert counts == dict(zip(texts(first[:3]), (0, 1, 0), strict=True))


async def test_a_property_changed_by_abandoning_is_selected_by(client: Client, queue: str) -> None:
    await send(client, queue, message("x", stage=1))
    receiver = await client.receiver(queue, filter=selecting("stage = 2"))
    assert await receiver.drain(1) == []
    plain = await client.receiver(queue, credit=1)
    changed = Modified(delivery_failed=True, message_annotations={Symbol("stage"): 2})
    await plain.settled_as(await plain.receive(), changed)
    plain.detach()
    assert texts(await receiver.drain(1)) == ["x"]


async def test_a_long_backlog_is_searched_to_its_end_and_holds_up_nobody(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    await sender.send(*(message(str(n), n=n) for n in range(3000)))
    selective = await client.receiver(queue, filter=selecting("n = 2999"), credit=5)
    assert texts(await selective.receive()) == ["2999"]
    assert len(await (await client.receiver(queue, deletes=True)).drain(4000)) == 2999


async def test_the_fields_of_a_message_have_the_names_that_jms_gives_them(client: Client, queue: str) -> None:
    properties = Properties(
        message_id="ID:1",
        correlation_id="c",
        subject="order",
        creation_time=Timestamp(1_700_000_000_000),
        user_id=b"ada",
        to="somewhere",
    )
    await send(client, queue, message("it", properties, Header(durable=True, priority=7)))
    await send(client, queue, message("other", Properties(message_id="2")))
    for selector in (
        "JMSMessageID = 'ID:1'",
        "JMSCorrelationID = 'c'",
        "JMSType LIKE 'ord%'",
        "JMSPriority > 4",
        "JMSDeliveryMode = 'PERSISTENT'",
        "JMSTimestamp BETWEEN 1600000000000 AND 1800000000000L",
        "JMSXUserID = 'ada'",
        "amqp.subject = 'order'",
        "\"amqp.to\" = 'somewhere'",
        "sys.Label = 'order'",
        "JMSType IS NOT NULL AND missing IS NULL",
    ):
        assert texts(await browsed(client, queue, filter=selecting(selector))) == ["it"], selector
    # An id that no JMS client wrote has the form in which JMS clients show it.
    found = await browsed(client, queue, filter=selecting("JMSMessageID = 'ID:AMQP_NO_PREFIX:2'"))
    assert texts(found) == ["other"]


async def test_selectors_work_on_subscriptions_and_dead_letters(client: Client, queue: str) -> None:
    await send(client, queue, message("a"), message("b"))
    receiver = await client.receiver(queue, credit=2)
    for delivery, text in zip(await receiver.receive(2), ("a", "b"), strict=True):
        reason = {Symbol("DeadLetterReason"): f"why-{text}"}
        await receiver.settled_as([delivery], rejected(reason))
    for text in ("a", "b"):
        asked = selecting(f"DeadLetterReason = 'why-{text}'")
        dead = await client.receiver(f"{queue}/$deadletterqueue", filter=asked)
        assert len(await dead.drain(10)) == 1
    subscription = queue.split("-", maxsplit=1)[0] + "-topic/subscriptions/s"
    await send(client, queue.split("-", maxsplit=1)[0] + "-topic", message("1", n=1), message("2", n=2))
    only = await client.receiver(subscription, filter=selecting("n = 2"))
    assert texts(await only.drain(10)) == ["2"]


def rejected(info: dict[str, object]) -> Rejected:
    return Rejected(error=Error(Symbol("com.microsoft:dead-letter"), None, info))


@pytest.mark.parametrize("mode", ["copy", "move"])
async def test_a_selector_that_cannot_be_read_is_refused_with_the_place(
    client: Client, queue: str, mode: str
) -> None:
    for text in ("colour = ", "colour == 'x'", "(a = 1", "newid() = 'x'"):
        with pytest.raises(LinkRefused, match="position") as refused:
            await client.receiver(queue, filter=selecting(text), distribution_mode=Symbol(mode))
        assert refused.value.condition == "amqp:invalid-field"
    with pytest.raises(LinkRefused, match="must be a string"):
        await client.receiver(queue, filter={Symbol("x"): Described(Symbol(SELECTOR), 5)})


async def test_a_filter_that_is_not_known_is_left_out_of_the_answer(client: Client, queue: str) -> None:
    await send(client, queue, message("x", n=1))
    invented = {Symbol("acme:only-on-tuesdays"): Described(Symbol("acme:only-on-tuesdays"), True)}
    no_local = {Symbol("no-local"): Described(NO_LOCAL_CODE, [])}
    for asked in (invented, no_local, {**invented, **no_local}):
        for mode in (None, Symbol("copy")):
            receiver = await client.receiver(queue, filter=asked, distribution_mode=mode)
            assert answered_filter(receiver) == {}
    both = {**invented, **selecting("n = 2")}
    receiver = await client.receiver(queue, filter=both)
    assert answered_filter(receiver) == selecting("n = 2")
    assert await receiver.drain(5) == []
    # By symbol, as proton writes it, and under its own name without a descriptor, as some do.
    for known in (
        {Symbol("selector"): Described(Symbol(SELECTOR), "n = 1")},
        {Symbol(SELECTOR): "n = 1"},
    ):
        receiver = await client.receiver(queue, filter=known)
        assert answered_filter(receiver) == known
        found = await receiver.drain(5)
        assert texts(found) == ["x"]
        await receiver.settled_as(found, Released())


async def test_a_settled_browser_says_so(client: Client, queue: str) -> None:
    await send(client, queue, message("x"))
    link = await browser(client, queue)
    assert link.link.remote is not None
    source = link.link.remote.source
    assert isinstance(source, Source)
    assert (link.link.remote.snd_settle_mode, source.distribution_mode) == (SND_SETTLED, "copy")
    assert [each.settled for each in await link.drain(1)] == [True]


@pytest.mark.parametrize(
    ("default", "counted"),
    [(Modified(delivery_failed=True), 1), (Released(), 0), (None, 0)],
    ids=["modified", "released", "none"],
)
async def test_a_delivery_that_is_settled_without_an_outcome_gets_the_default_one(
    client: Client, queue: str, default: DeliveryState | None, counted: int
) -> None:
    """Proton settles like that. Before, the message stayed locked, whatever the source said."""
    await send(client, queue, message("a"))
    receiver = await client.receiver(queue, credit=2, default_outcome=default)
    receiver.link.settle(await receiver.receive(), None)
    client.flush()
    (again,) = await receiver.receive()
    header = decode_message(again.payload).header
    assert (0 if header is None else header.delivery_count or 0) == counted


async def test_the_default_outcome_may_complete(client: Client, queue: str) -> None:
    await send(client, queue, message("a"), message("b"))
    receiver = await client.receiver(queue, credit=1, default_outcome=Accepted())
    (first,) = await receiver.receive()
    receiver.link.settle([first], None)
    receiver.grant(1)
    (second,) = await receiver.receive()
    assert texts([first]) != texts([second])
    receiver.link.settle([second], None)
    receiver.detach()
    assert await browsed(client, queue) == []
