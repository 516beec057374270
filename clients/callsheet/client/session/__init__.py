"""The session with a scheduler: its channel, its stream, what it owes its callers, and payloads beside it."""
