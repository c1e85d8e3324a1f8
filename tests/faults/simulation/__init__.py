"""The whole broker in one process, in a world made of a seed: time, disks, wires, peers, and what goes wrong.

    python -m faults.simulation --seeds 1000

docs/guides/simulation.md says what it is good for and how to go on from a seed that fails.
"""
