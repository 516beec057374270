"""An engine that answers by a script: for dry runs of agents, and for tests of what is around an engine."""
