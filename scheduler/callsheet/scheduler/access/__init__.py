"""Rights of callers: tokens, their scopes, and the guard of every rpc."""
