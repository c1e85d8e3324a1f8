"""What tools do with messages: draft, peek, copy, move and purge them, on the two clients.

The command line and the portal are built on these. They reach a server, this one or Azure's, only over
the wire, and print nothing: progress is what a generator yields or a callback is told.
"""
