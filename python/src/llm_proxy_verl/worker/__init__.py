"""The worker's side of the worker protocol, independent of verl."""
