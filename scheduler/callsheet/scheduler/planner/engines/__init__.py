"""What is known of inference engines: how fast they are, whose prefixes they hold, what a generation costs there."""
