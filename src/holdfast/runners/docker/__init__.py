"""Containers as processes: a client of the Docker engine, and the runner that the keeper starts."""
