"""The scheduling core: a state machine without I/O, clock or randomness of its own."""
