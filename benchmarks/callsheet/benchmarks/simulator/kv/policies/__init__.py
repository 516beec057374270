"""Ways to route generations, each at several settings."""
