"""State of the core, and the accounts that it keeps. Nothing here decides."""
