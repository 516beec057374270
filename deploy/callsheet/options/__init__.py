"""Settings that declare how a command line offers them. Imports nothing heavy."""
