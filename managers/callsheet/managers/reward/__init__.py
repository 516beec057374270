"""The reward manager: a scoring model, and test suites as fresh processes."""
