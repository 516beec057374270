"""Who answers a planning question: the greedy, the linear relaxation and CP-SAT."""
