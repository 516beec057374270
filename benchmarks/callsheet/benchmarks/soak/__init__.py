"""What a scheduler keeps under a long mixed load: memory and disk over time, beside what its settings allow."""
