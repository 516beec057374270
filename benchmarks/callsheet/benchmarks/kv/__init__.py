"""KV admission against plain routing, on an engine that really computes."""
