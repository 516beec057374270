"""The inference manager: engines behind one protocol, and the executor that runs generate actions on them."""
