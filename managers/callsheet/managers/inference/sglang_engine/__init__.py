"""A driver for SGLang servers."""
