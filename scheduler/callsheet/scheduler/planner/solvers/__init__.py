"""Who answers a planning question: the greedy and CP-SAT."""
