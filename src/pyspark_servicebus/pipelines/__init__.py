"""Pipelines: common tasks with the messages of a namespace, ready to run on Spark.

    from pyspark_servicebus import spark_session
    from pyspark_servicebus.pipelines import Bus, Capture, Run

    capture = Capture(bus=Bus(CONNECTION_STRING), entity="orders", path="/data/captured")
    print(capture.run(spark_session("capture"), Run()).to_json())

The same as `bendybus pipeline ...` on the command line. Each pipeline is a value: `check()` raises if
it cannot work, `run()` runs it and continues where an earlier run ended. docs/guides/pipelines.md.
"""

from pyspark_servicebus.pipelines.capture import Capture, captured
from pyspark_servicebus.pipelines.pipeline import Bus, Pipeline, Progress, Run, Summary
from pyspark_servicebus.pipelines.repartition import Repartition
from pyspark_servicebus.pipelines.replay import Replay
from pyspark_servicebus.pipelines.report import Report
from pyspark_servicebus.pipelines.route import Route
from pyspark_servicebus.pipelines.shipping import shipped
from pyspark_servicebus.pipelines.triage import Triage

__all__ = [
    "Bus",
    "Capture",
    "Pipeline",
    "Progress",
    "Repartition",
    "Replay",
    "Report",
    "Route",
    "Run",
    "Summary",
    "Triage",
    "captured",
    "shipped",
]
