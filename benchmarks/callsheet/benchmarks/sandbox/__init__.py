"""What sandboxes cost: made, reset, used and kept, beside the bare tool doing the same."""
