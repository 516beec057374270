"""What our HTTP servers have in common: where they listen, TLS that follows its files, bounded requests."""
