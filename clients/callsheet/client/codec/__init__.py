"""From the client's values to the contract's messages and back. Nothing here waits."""
