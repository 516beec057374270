"""Games: FrozenLake in a process of the sandbox, and tasks of reasoning-gym where that is installed."""
