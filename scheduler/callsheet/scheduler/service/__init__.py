"""The shell around the core: gRPC servicers, sessions, the loop, and what starts and stops them."""
