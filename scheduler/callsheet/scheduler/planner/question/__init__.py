"""Question of a planning round: classes, the ways to start them, the units that they take, and the cost of each way."""
