"""What baseline policies are put together from: lines, books of cores, memory and GPUs, and calls to services."""
