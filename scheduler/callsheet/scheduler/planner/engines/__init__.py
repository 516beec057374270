"""Knowledge of inference engines: their speed, the prefixes that they hold, and the cost of a generation on each."""
