"""The protocols of agents, each translated to a `ChatRequest` and back: pure functions, one module a protocol."""
