"""A process that dies in the middle: what it acknowledged is there, and nothing is half there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.sqlite.store import SqliteStore

BATCH = 20

# Commit number n stores BATCH messages and removes half of those of commit n - 1; a line on the pipe
# acknowledges it. It goes on from where the process before it was cut off.
CHILD = """
import sys
from pathlib import Path
from bendybus.domain.messages import Message
from bendybus.store.protocol import PartitionChanges
from bendybus.store.sqlite.store import SqliteStore

BATCH = 20
store = SqliteStore(Path(sys.argv[1]))
store.open()
(record,) = store.create_partitions("orders", [0])
snapshot = store.load(record.key)
commit = (snapshot.next_sequence_number - 1) // BATCH
last = [message for message in snapshot.messages if message.sequence_number > (commit - 1) * BATCH]
while True:
    first = commit * BATCH + 1
    stored = []
    for sequence in range(first, first + BATCH):
        message = Message(b"%d." % sequence * 300, size=1)
        message.sequence_number = sequence
        stored.append(message)
    store.commit([PartitionChanges(record.key, first + BATCH, stored, [], last[: BATCH // 2])])
    commit, last = commit + 1, stored
    print(commit, flush=True)
"""


def expected_after(commits: int) -> list[int]:
    """Half of each batch but the last has been removed."""
    return [
        batch * BATCH + offset + 1
        for batch in range(commits)
        for offset in range(BATCH)
        if batch == commits - 1 or offset >= BATCH // 2
    ]


def run_and_kill(path: Path, acknowledgements: int) -> int:
    """Returns the last commit that the child acknowledged before it died."""
    command = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(acknowledgements)]
        child.kill()
        lines += child.stdout.readlines()
    # The last line may itself have been cut; then it was never read as an acknowledgement.
    return int([line for line in lines if line.endswith("\n")][-1])


@pytest.mark.row("B-08", "P-23")
def test_a_killed_process_loses_nothing_acknowledged_and_leaves_no_half(tmp_path: Path) -> None:
    path = tmp_path / "store-0.db"
    for acknowledgements in (1, 7, 30, 2, 60):
        acknowledged = run_and_kill(path, acknowledgements)
        store = SqliteStore(path)
        store.open()
        try:
            (record,) = store.create_partitions(EntityPath("orders"), [PartitionNumber(0)])
            snapshot = store.load(record.key)
            committed = (snapshot.next_sequence_number - 1) // BATCH
            # One commit more may have become durable without anyone having been told.
            assert committed in (acknowledged, acknowledged + 1)
            numbers = [message.sequence_number for message in snapshot.messages]
            assert numbers == expected_after(committed)
            payloads = store.read([message.row_id for message in snapshot.messages])
            assert payloads == [b"%d." % number * 300 for number in numbers]
        finally:
            store.close()
