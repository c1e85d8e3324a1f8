"""Service Bus in Spark: the data source `servicebus`, for batches and streams, reading and writing.

    spark.read.format("servicebus").option("connectionString", ...).option("entity", "orders").load()

Spark finds it because it is installed: Spark looks in every package named
`pyspark_*` for a `DefaultSource`. It works with Bendybus and, for browsing only,
with Azure. What each part does, when and where: datasource.py. `spark_session`
creates a session whose workers find this package: java.py.
"""

from pyspark_servicebus.datasource import ServiceBusDataSource
from pyspark_servicebus.java import prepare_environment, spark_session
from pyspark_servicebus.offsets import lag_of

__all__ = ["DefaultSource", "ServiceBusDataSource", "lag_of", "prepare_environment", "spark_session"]

DefaultSource = ServiceBusDataSource
