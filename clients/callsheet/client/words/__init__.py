"""Values that users give and get: actions, demands, outcomes, results."""
