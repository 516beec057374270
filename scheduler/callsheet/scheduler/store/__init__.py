"""Durability: the write-ahead journal with its group commit, and the payload store."""
