"""A whole training run: TRL's GRPO on a small model that learns, on two cores, which command a task asks for."""
