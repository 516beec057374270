"""A driver for vLLM servers."""
