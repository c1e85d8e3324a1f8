"""AMQP 1.0 values and bytes: no I/O, no state, nothing imported but bendybus.errors."""
