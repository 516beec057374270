"""A driver for any server with the completions API of OpenAI."""
