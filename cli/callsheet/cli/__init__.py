"""The `callsheet` command. Every other room is imported inside the command that needs it."""
