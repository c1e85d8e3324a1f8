"""AMQP values <-> bytes: the two functions that the rest of the product uses.

`decode(encode(value))` gives the same value with the same type. How each direction
works: decoder.py and encoder.py. Which Python class is which type: types.py.
"""

from __future__ import annotations

from bendybus.amqp.decoder import NESTING_MAX, decode
from bendybus.amqp.encoder import encode, encode_into

__all__ = ["NESTING_MAX", "decode", "encode", "encode_into"]
