"""What the planner tells people: why an action waits, who holds what it lacks, and what more nodes would do."""
