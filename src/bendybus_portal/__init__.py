"""The portal: inspect and manage a namespace in a browser.

The portal is an ordinary client. It speaks ATOM, REST and AMQP with the key of the person who signed in,
through the same clients as the command line, so it also works with another Bendybus or with Azure. It runs in
a separate process: the server starts it at the first visit (bendybus/server/portal.py), and `bendybus portal`
runs it alone. Read in this order: serving, guard, sessions, signing_in, access, layout, pages.
"""
