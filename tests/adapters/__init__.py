"""Adapters of trainers, written once and never changed: they prove that the client's public names stay."""
