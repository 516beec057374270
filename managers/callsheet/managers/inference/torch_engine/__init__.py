"""A small inference engine in torch: one request after the other, in turns, so that none changes another's tokens."""
