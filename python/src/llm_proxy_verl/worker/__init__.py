"""The worker side of the worker protocol (docs/worker-protocol.md), independent of verl."""
