"""The nodes as pools of alike ones, what runs there, and which member goes to which node."""
