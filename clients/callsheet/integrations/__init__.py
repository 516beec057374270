"""Ways to use Callsheet from code that was written for something else. Each is nothing but a client."""
