"""Sandboxes that are containers of an engine with Docker's API: Docker itself, or Podman through its socket.

A fork is a commit of its parent and a container made from that. Everything goes through the API, so the engine may be
on another machine. What runs inside needs a shell and the usual small programs, and nothing of ours: each command has a
shell around it that says how it ended, and is found by a mark in its environment when it has to be ended.
"""

from race.sandboxes.docker.provider import DockerProvider

__all__ = ["DockerProvider"]
"""Makes and finds such sandboxes."""
