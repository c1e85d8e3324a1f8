"""Options are read and refused without a Spark and without a server."""

from __future__ import annotations

import pytest

from bendybus.errors import ArgumentError
from pyspark_servicebus.options import EARLIEST, LATEST, ReadOptions, WriteOptions

STRING = "Endpoint=sb://localhost;SharedAccessKeyName=Root;SharedAccessKey=top-secret"


def reading(**more: str) -> ReadOptions:
    return ReadOptions.parse({"connectionString": STRING, "entity": "orders"} | more)


def writing(**more: str) -> WriteOptions:
    return WriteOptions.parse({"connectionString": STRING, "entity": "orders"} | more)


def test_what_is_not_said_is_as_documented():
    options = reading()
    assert (options.entity, options.consume, options.states) == ("orders", False, (0,))
    assert (options.starting.at(3), options.ending.at(3)) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert options.messages_per_trigger is None
    assert options.settings.retries == 10


def test_names_are_found_in_any_case():
    """Spark hands them over in lower case."""
    assert reading(maxmessagespertrigger="7").messages_per_trigger == 7
    assert reading(MaxMessagesPerTrigger="7").messages_per_trigger == 7


def test_the_size_of_an_answer_has_bounds():
    assert reading(fetchBytes="65536").fetch_bytes == 65_536
    with pytest.raises(ArgumentError, match="fetchBytes"):
        reading(fetchBytes="1")


def test_offsets_are_by_partition_or_everywhere():
    options = reading(startingOffsets='{"0": 23, "1": -1}', endingOffsets="latest")
    assert [options.starting.at(number) for number in range(3)] == [23, LATEST, EARLIEST]


def test_a_connection_string_may_be_in_the_environment(monkeypatch):
    monkeypatch.setenv("BUS", STRING)
    assert ReadOptions.parse({"connectionStringEnv": "BUS", "entity": "q"}).settings.key == "top-secret"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"colour": "red"}, "'colour' is unknown"),
        ({"mode": "Peek"}, "'mode' must be one of browse, consume, not 'Peek'"),
        ({"startingOffsets": "first"}, "'startingOffsets' must be earliest, latest"),
        ({"startingOffsets": '{"0": -3}'}, "'startingOffsets' must be"),
        ({"startingOffsets": '{"a": 3}'}, "'startingOffsets' must be"),
        ({"startingOffsets": "[1]"}, "'startingOffsets' must be"),
        ({"minPartitions": "0"}, "'minPartitions' must be a whole number from 1"),
        ({"operationTimeoutMs": "-5"}, "'operationTimeoutMs' must be"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss' must be one of true, false"),
        ({"states": "lost"}, "'lost' is none of active, deferred, scheduled"),
        ({"partitions": "a"}, "'partitions' must be numbers"),
        ({"leaseDurationMs": "1"}, "'leaseDurationMs' must be a whole number from 1000"),
        ({"mode": "consume", "states": "scheduled"}, "scheduled messages cannot be consumed"),
        ({"mode": "consume", "extensions": "never"}, "needs the broker's extensions"),
        ({"mode": "consume", "sessionId": "s"}, "'sessionId' cannot be combined with mode 'consume'"),
        ({"mode": "consume", "startingTimestamp": "5"}, "'startingTimestamp' cannot be combined"),
        ({"mode": "consume", "endingTimestamp": "5"}, "'endingTimestamp' cannot be combined"),
        ({"mode": "consume", "startingOffsets": "latest"}, "'startingOffsets' cannot be anything but"),
        ({"mode": "consume", "startingOffsets": '{"1": 23}'}, "'startingOffsets' cannot be anything but"),
        ({"batching": "true"}, "not for this direction"),
        ({"connectionStringEnv": "X"}, "Exactly one of the options"),
        ({"entity": ""}, "'entity' is missing"),
        ({"connectionString": "nonsense"}, "connection string"),
    ],
)
def test_what_cannot_be_meant_is_named_without_the_key(more, named):
    with pytest.raises(ArgumentError, match=named) as caught:
        reading(**more)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("subscribe", "Here it is 'entity'"),
        ("kafka.bootstrap.servers", "Here it is 'connectionString'"),
        ("maxOffsetsPerTrigger", "Here it is 'maxMessagesPerTrigger'"),
        ("startingOffsetsByTimestamp", "Here it is 'startingTimestamp'"),
        ("includeHeaders", "Here it is 'includeProperties'"),
        ("kafka.linger.ms", "no counterpart here"),
        ("eventhubs.connectionString", "Here it is 'connectionString'"),
        ("startingOffset", "Did you mean 'startingOffsets'"),
        ("maxMessagesPerTriger", "Did you mean 'maxMessagesPerTrigger'"),
    ],
)
def test_an_option_of_another_connector_is_answered_with_ours(name, answer):
    with pytest.raises(ArgumentError, match=answer) as caught:
        reading(**{name: "x"})
    # As it was written, and not in lower case.
    assert f"'{name}'" in str(caught.value)


def test_options_of_a_table_have_a_prefix_and_company():
    """As Spark hands them over for CREATE TABLE ... USING servicebus OPTIONS (...)."""
    options = ReadOptions.parse(
        {
            "option.connectionString": STRING,
            "option.entity": "orders",
            "option.Mode": "consume",
            "provider": "servicebus",
            "owner": "ada",
            "location": "file:/warehouse/orders",
            "is_managed_location": "true",
        }
    )
    assert (options.entity, options.consume) == ("orders", True)
    with pytest.raises(ArgumentError, match="'colour' is unknown"):
        ReadOptions.parse({"option.connectionString": STRING, "option.entity": "q", "option.colour": "red"})
    with pytest.raises(ArgumentError, match="'owner' is unknown"):
        reading(owner="ada")


def test_consuming_takes_what_leaves_no_message_of_a_partition_out():
    assert reading(mode="consume", startingOffsets="earliest").consume
    assert reading(mode="consume", startingOffsets='{"1": -2}').consume
    assert reading(mode="consume", partitions="0,3").partitions == {0, 3}


def test_writing_has_options_of_its_own():
    assert writing().generate_ids
    assert not writing(messageIds="none").generate_ids
    with pytest.raises(ArgumentError, match="not for this direction"):
        writing(startingOffsets="latest")


def test_no_key_is_printed():
    assert "secret" not in repr(reading()) + repr(writing())
