"""The manager's side of a sandbox: what it asks of the agent inside, and what runs there."""
