"""The views: each asks a source and makes blocks of what it answers."""
