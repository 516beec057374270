"""The tokens of a trajectory's calls, kept exactly: a tree of turns, and the samples that a trainer takes from it.

Nothing here does I/O or reads a clock. docs/concepts/token-exact.md tells the idea.
"""
