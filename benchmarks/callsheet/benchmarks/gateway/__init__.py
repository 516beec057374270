"""`callsheet bench gateway`: whether what a gateway exports is what the engine sampled, token for token."""
