"""Adapters of trainers with the real trainers. `make trainers` runs them; `make test` does not."""
