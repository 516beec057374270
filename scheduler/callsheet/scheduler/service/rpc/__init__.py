"""The gRPC servicers and what surrounds every rpc."""
