"""The wired engines of tests/fix_engine.py, for every test of the protocol."""

from __future__ import annotations

from fix_engine import pair, peer

__all__ = ["pair", "peer"]
