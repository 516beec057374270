"""Settings that declare how a command line offers them; an option's help is its documentation. Nothing heavy."""
