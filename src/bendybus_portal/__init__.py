"""The portal: see and steer a namespace in a browser.

A client like any other. It speaks ATOM, REST and AMQP with the key of the person who signed in, through the
same clients as the command line, so it also works with another Bendybus or with Azure. It runs in a process
of its own: the server starts it at the first visit (bendybus/server/portal.py), and `bendybus portal` runs it
alone. Read in this order: serving, guard, sessions, signing_in, access, layout, pages.
"""
