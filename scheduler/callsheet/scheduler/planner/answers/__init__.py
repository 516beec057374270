"""Answers for people: why an action waits, which holder has what it lacks, and what more nodes would do."""
