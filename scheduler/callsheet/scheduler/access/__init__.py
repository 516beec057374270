"""Who may do what: tokens, their scopes, and the guard of every rpc."""
