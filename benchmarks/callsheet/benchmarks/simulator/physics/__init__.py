"""How the simulated machines behave: nothing in here decides."""
