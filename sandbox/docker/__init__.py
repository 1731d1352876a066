"""The production engine: any Docker-compatible socket, through aiodocker."""

from sandbox.docker.engine import DockerEngine

__all__ = ["DockerEngine"]
