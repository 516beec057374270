"""Common parts of our HTTP servers: their addresses, TLS that follows its files, and bounded requests."""
