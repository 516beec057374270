"""Solvers of a planning question: the greedy and CP-SAT."""
