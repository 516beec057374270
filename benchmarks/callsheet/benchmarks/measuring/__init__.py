"""What all benchmarks measure with: their arithmetic, and what they tell of the machine."""
