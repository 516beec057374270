"""What all benchmarks measure with: clocks, arithmetic, Ray beside them, tables, and what they tell of the machine."""
