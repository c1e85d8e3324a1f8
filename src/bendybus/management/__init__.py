"""The management client: what a program needs to manage the entities of a namespace.

    with ManagementClient(ConnectionString.parse(text)) as management:
        for entry in management.list(QUEUES):
            print(entry.name, entry.text("MaxDeliveryCount"))

Used by the command line and the pipelines. It talks to a server, this one or Azure's, over HTTP alone, and
imports nothing of the server's packages. Read in this order: http, entries, client,
properties, filter_rules, json_api.
"""
