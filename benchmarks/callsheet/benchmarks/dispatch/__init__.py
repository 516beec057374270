"""The dispatch benchmark: no-op actions through Callsheet, beside raw gRPC streams and beside Ray, in one run."""
