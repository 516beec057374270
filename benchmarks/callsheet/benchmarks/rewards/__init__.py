"""Many reward models in the memory of few, beside each in its own and beside simpler ways to swap."""
