"""A small inference engine in torch: continuous batching, a bounded KV cache, the same tokens in every batch."""
