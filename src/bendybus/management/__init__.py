"""The management client: what a program needs to manage the entities of a namespace.

    with ManagementClient(ConnectionString.parse(text)) as management:
        for entry in management.list(QUEUES):
            print(entry.name, entry.text("MaxDeliveryCount"))

Used by the command line and the pipelines, and open to any program of ours that is a
client like any other. It talks to a server, this one or Azure's, over HTTP alone, and
imports nothing of the server's packages. Read in this order: http, entries, client,
properties, rules, json_api.
"""
