"""The parts of a round: who may begin, what is asked, and what is kept for whom."""
