"""From messages to the core's requests and events, checked, and from the core's state to messages."""
