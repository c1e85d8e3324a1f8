"""What is wrong is named, before any message is touched, and without the key."""

from __future__ import annotations

import pytest

from fix_server import Kind


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"startingOffset": "latest"}, "Did you mean 'startingOffsets'"),
        ({"subscribe": "orders"}, "Here it is 'entity'"),
        ({"mode": "consume"}, "a batch has no commit"),
    ],
)
def test_options_that_cannot_be_meant_are_named(read, more, named, server):
    """All of them: test_options.py."""
    with pytest.raises(Exception, match=named) as caught:
        read("usual-partitioned-0", **more).collect()
    assert server.key not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_wrong_key_is_named(spark, options, new_queue, server):
    wrong = options(new_queue(Kind.PARTITIONED))
    wrong["connectionString"] = wrong["connectionString"].replace(server.key, "wrong")
    with pytest.raises(Exception, match="has an invalid signature"):
        spark.read.format("servicebus").options(**wrong).load().collect()
    rows = spark.range(1).selectExpr("'x' as body")
    with pytest.raises(Exception, match="has an invalid signature"):
        rows.write.format("servicebus").options(**wrong).mode("append").save()


def test_an_unknown_entity_is_named(spark, options, read):
    with pytest.raises(Exception, match="nowhere' could not be found") as caught:
        read("nowhere").collect()
    assert "Traceback" not in str(caught.value)
    rows = spark.range(1).selectExpr("'x' as body")
    with pytest.raises(Exception, match="nowhere' could not be found") as caught:
        rows.write.format("servicebus").options(**options("nowhere")).mode("append").save()
    assert "Traceback" not in str(caught.value)


def test_a_mistake_in_a_task_or_a_stream_has_no_traceback(spark, options, new_queue, tmp_path):
    large = spark.range(1).selectExpr("repeat('x', 300000) as body")
    with pytest.raises(Exception, match=r"300\d+ bytes; at most") as caught:
        large.write.format("servicebus").options(**options(new_queue(Kind.PARTITIONED))).mode("append").save()
    assert "Traceback" not in str(caught.value)
    writing = spark.readStream.format("servicebus").options(**options("nowhere")).load().writeStream
    writing = writing.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(Exception, match="nowhere' could not be found") as caught:
        writing.start().awaitTermination()
    assert "Traceback" not in str(caught.value)


def test_a_connection_string_may_stay_in_a_file(spark, server, new_queue, fill, tmp_path):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 3)
    secret = tmp_path / "secret"
    secret.write_text(server.connection_string + "\n")
    reading = spark.read.format("servicebus").option("connectionStringFile", str(secret))
    assert reading.option("entity", queue).load().count() == 3
    with pytest.raises(Exception, match="connectionStringFile"):
        spark.read.format("servicebus").option("connectionStringFile", "/no/such").load()


def test_a_column_that_the_source_lacks_is_named(spark, options, new_queue):
    reading = spark.read.format("servicebus").options(**options(new_queue(Kind.PARTITIONED)))
    with pytest.raises(Exception, match=r"'colour' \(string\) is none of this source's"):
        reading.schema("body binary, colour string").load().collect()
