"""The bounds of callers: their tokens, rates, unread items and refusals."""
