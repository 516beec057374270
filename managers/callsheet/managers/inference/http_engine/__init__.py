"""What drivers of engines behind HTTP have in common: calls with deadlines, live requests, the watch over a server."""
