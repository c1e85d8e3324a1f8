"""The process of one broker of several, started by the supervisor (supervisor.py) and by nobody else.

It reads from its standard input what it is to be, and writes `ready` when it serves clients.
"""

from __future__ import annotations

import pickle
import sys

from bendybus.errors import SetupError, StoreUnavailable
from bendybus.server.cluster_member import Membership
from bendybus.server.process import run_member

__all__: list[str] = []

EXIT_SETUP = 2


def main() -> None:
    # From the process that has started this one, with the same rights.
    membership = pickle.load(sys.stdin.buffer)
    assert isinstance(membership, Membership)
    try:
        run_member(membership)
    except (SetupError, StoreUnavailable) as error:
        sys.stderr.write(f"bendybus: {error}\n")
        sys.exit(EXIT_SETUP)


if __name__ == "__main__":
    main()
