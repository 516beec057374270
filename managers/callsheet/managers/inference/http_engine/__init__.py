"""Common parts of drivers of engines behind HTTP: calls with deadlines, live requests, the watch over a server."""
