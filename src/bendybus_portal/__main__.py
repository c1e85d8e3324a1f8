"""The portal's process, as a server starts it: settings come from its standard input."""

from bendybus_portal.serving import run_for_server

run_for_server()
