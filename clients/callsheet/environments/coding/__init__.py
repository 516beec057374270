"""Coding tasks: bugs in real packages, to be fixed in a sandbox and scored by the packages' own test suites."""
