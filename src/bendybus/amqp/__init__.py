"""AMQP 1.0 values and bytes: no I/O, no state, no imports from Bendybus except bendybus.errors."""
