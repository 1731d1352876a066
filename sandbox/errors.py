"""Faults of the sandbox layer.

    SandboxError                     something of ours or of the engine's failed: infrastructure, never a reward
    ├── EngineUnavailable            no engine answers: the command line prints it with the remedy
    ├── EngineFault                  the engine refused or hung: retried by the stage's redelivery policy
    │   └── ImageMissing                 the image to start from is gone: whoever knows its context builds it again
    ├── PackagesMissing              an environment asks for packages that cannot be installed: a failed build
    ├── ServiceUnhealthy             a service does not come up on an image that nobody has worked in
    ├── BuildUnsupported             this engine cannot build that environment: the task is rejected with the reason
    ├── SandboxLost                  the sandbox died under its user: ends the episode, never an observation
    └── TransferRefused              a path or archive crossed a limit: the task or the caller is at fault

A build that fails and a command that fails are data (`BuildResult`, `CommandResult`), not exceptions.
"""


class SandboxError(Exception):
    """Base of every fault in this package."""


class EngineUnavailable(SandboxError):
    """No engine of the wanted kind can be used here."""

    def __init__(self, engine: str, reason: str, remedy: str) -> None:
        self.engine, self.reason, self.remedy = engine, reason, remedy
        super().__init__(f"sandbox engine '{engine}' is not available: {reason}. {remedy}")


class PackagesMissing(SandboxError):
    """The distribution does not have these packages, not together, or in no state to be installed."""

    def __init__(self, packages: tuple[str, ...], log: str) -> None:
        self.packages, self.log = packages, log
        super().__init__(f"{', '.join(packages)} cannot be installed: {log}")


class ServiceUnhealthy(SandboxError):
    """A service ended, or did not pass its health check in time."""

    def __init__(self, sandbox_id: str, report: str) -> None:
        self.sandbox_id, self.report = sandbox_id, report
        super().__init__(f"sandbox {sandbox_id}: {report}")


class EngineFault(SandboxError):
    """The engine failed or did not answer in time."""

    def __init__(self, engine: str, operation: str, reason: str) -> None:
        self.engine, self.operation, self.reason = engine, operation, reason
        super().__init__(f"{engine}: {operation} failed: {reason}")


class ImageMissing(EngineFault):
    """The engine holds no such image: it was never built here, or was removed since."""

    def __init__(self, engine: str, image: str) -> None:
        self.image = image
        super().__init__(engine, "create", f"there is no image {image!r}")


class BuildUnsupported(SandboxError):
    """The environment uses something that this engine cannot build."""

    def __init__(self, engine: str, what: str, remedy: str) -> None:
        self.engine, self.what = engine, what
        super().__init__(f"the {engine} engine cannot build {what}. {remedy}")


class SandboxLost(SandboxError):
    """The sandbox is gone: killed, out of memory, or past its lifetime."""

    def __init__(self, sandbox_id: str, reason: str) -> None:
        self.sandbox_id, self.reason = sandbox_id, reason
        super().__init__(f"sandbox {sandbox_id} is gone: {reason}")


class TransferRefused(SandboxError):
    """A file transfer crossed a limit or named a forbidden path."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"transfer of {path!r} refused: {reason}")
