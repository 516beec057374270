"""The life of a job beside its actions: who holds it, its buffer and batches, and what it may keep."""
