"""The spawner's loop: requests from the engine, reports from forks, ends of processes.

One `poll` waits for all three. A request that needs work forks; the fork's report, or the end of its pipe, answers the
request. When the engine's process ends or closes its socket, every sandbox is killed and cleared, and the
spawner ends. Every child is a direct one, so that each end is seen here and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from . import execute, kernel, root, seccomp, transfer, wire
from .cgroups import Cgroups, Limits
from .privileges import keep_only
from .tree import remove_tree

_EXITING = 0x4
"""PF_EXITING in the flags of /proc/PID/stat."""
_STAT_SESSION, _STAT_FLAGS = 3, 6
_INSIDE = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS

Work = Callable[[Callable[[wire.Message], None]], None]
"""What a fork does; it is given a function that reports to the parent."""


class Sandbox:
    """One running sandbox. `group` is its name in the control groups and in the vault."""

    def __init__(self, request: wire.Message) -> None:
        self.group: str = request["sandbox"]
        self.profile: str = request["profile"]
        self.memory_mb: int = request["memory_mb"]
        self.upper: str = request["upper"]
        self.lease: str = request["lease"]
        self.first = 0
        """Process id of the first process; 0 before it started and after its end was collected."""
        self.pidfd = -1
        self.children: set[int] = set()
        """Every child of ours that works in this sandbox, the first process included."""
        self.stopping: list[wire.Message] = []
        """Requests to answer when all of `children` are gone."""


class Child:
    """One fork: on whose behalf it runs."""

    def __init__(self, sandbox: Sandbox, request: int, *, is_process: bool) -> None:
        self.sandbox, self.request, self.is_process = sandbox, request, is_process


class Report:
    """What a fork has written so far about the request that it serves."""

    def __init__(self, request: int, sandbox: Sandbox, *, is_process: bool) -> None:
        self.request, self.sandbox, self.is_process = request, sandbox, is_process
        self.data = b""


class Server:
    """All state of the spawner."""

    def __init__(self, control: socket.socket, place: str) -> None:
        self._control, self._place = control, place
        self._cgroups = Cgroups.detect()
        self._vault = root.make_vault(place)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._filter = seccomp.assemble(kernel.MACHINE)
        self._sandboxes: dict[str, Sandbox] = {}
        self._children: dict[int, Child] = {}
        self._reports: dict[int, Report] = {}
        self._poll = select.poll()
        self._wakeup = self._watch_children()
        self._poll.register(control, select.POLLIN)
        # The socket alone does not tell: a fork of the engine's process may hold its other end.
        self._engine = os.pidfd_open(os.getppid())
        self._poll.register(self._engine, select.POLLIN)

    def _watch_children(self) -> int:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(reader, select.POLLIN)
        return reader

    def serve(self) -> None:
        """Until the engine is gone."""
        self._send({"ready": True, "notes": self._cgroups.notes})
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._reports:
                    self._on_report(descriptor)
                elif descriptor == self._wakeup:
                    os.read(self._wakeup, 4096)
                elif descriptor == self._engine or not self._on_request():
                    return
            self._collect()

    # Requests

    def _on_request(self) -> bool:
        packet = wire.receive(self._control)
        if packet is None:
            return False
        message, descriptors = packet
        try:
            getattr(self, f"on_{message['op']}")(message, descriptors)
        except OSError as error:
            self._fault(message["id"], self._sandboxes.get(message.get("sandbox", "")), str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def on_start(self, message: wire.Message, _: list[int]) -> None:
        """Start a sandbox; answered when its first process is ready."""
        sandbox = Sandbox(message)
        self._sandboxes[sandbox.group] = sandbox
        limits = Limits(message["memory_mb"], message["pids"], message["cpus"])
        self._cgroups.create(sandbox.group, limits)

        def work(report: Callable[[wire.Message], None]) -> None:
            host_network = message["host_network"]
            execute.isolate(self._cgroups, sandbox.group, host_network=host_network)
            plan = root.Plan(
                layers=tuple(message["layers"]),
                upper=sandbox.upper,
                name=sandbox.group,
                disk_mb=message["disk_mb"],
                trusted=message["trusted"],
                trusted_at=message["trusted_at"],
                host_network=host_network,
            )
            root.enter(plan, self._vault, self._place)
            execute.idle(message["lifetime_s"], lambda: report({}))

        with self._children_in(None):
            sandbox.first = self._fork(message["id"], sandbox, work)
        sandbox.pidfd = os.pidfd_open(sandbox.first)

    def on_run(self, message: wire.Message, stdio: list[int]) -> None:
        """Start a process; answered when it has replaced the fork. Its end is an `exit` message."""
        sandbox = self._running(message)
        limit = None if self._cgroups.limits_memory else sandbox.memory_mb << 20
        command: execute.Command = message["command"]

        def work(_: Callable[[wire.Message], None]) -> None:
            execute.prefer_for_oom()
            execute.enter(self._cgroups, sandbox.group, sandbox.pidfd, _INSIDE)
            execute.run(command, sandbox.profile, stdio, self._filter, limit)

        with self._children_in(sandbox.pidfd):
            self._fork(message["id"], sandbox, work, is_process=True)

    def on_put(self, message: wire.Message, descriptors: list[int]) -> None:
        self._inside(message, lambda: transfer.place(descriptors[0]))

    def on_get(self, message: wire.Message, descriptors: list[int]) -> None:
        self._inside(message, lambda: transfer.take(message["path"], message["limit"], descriptors[0]))

    def _inside(self, message: wire.Message, work: Callable[[], bool | None]) -> None:
        """Do `work` in a fork inside the sandbox's file system and report what it returns."""
        sandbox = self._running(message)

        def inside(report: Callable[[wire.Message], None]) -> None:
            execute.enter(self._cgroups, sandbox.group, sandbox.pidfd, kernel.CLONE_NEWNS)
            keep_only("transfer")
            try:
                report({"value": work()})
            except transfer.RefusedError as refusal:
                report({"refused": [refusal.path, refusal.reason]})

        self._fork(message["id"], sandbox, inside)

    def on_kill(self, message: wire.Message, _: list[int]) -> None:
        """Kill the process of request `run` with all of its session; answered at once, the end follows."""
        for pid, child in self._children.items():
            if child.request == message["run"]:
                self._kill_session(pid, child.sandbox)
        self._send({"re": message["id"]})

    def on_stop(self, message: wire.Message, _: list[int]) -> None:
        """Kill everything in the sandbox; answered when all of it is proved gone."""
        sandbox = self._sandboxes.get(message["sandbox"])
        if sandbox is None:
            root.forget(self._vault, self._place, message["sandbox"])
            self._send({"re": message["id"]})
            return
        sandbox.stopping.append(message)
        for pid in sandbox.children:
            os.kill(pid, signal.SIGKILL)
        self._finish(sandbox)

    def on_forget(self, message: wire.Message, _: list[int]) -> None:
        """Drop the upper layer of a frozen sandbox."""
        root.forget(self._vault, self._place, message["layer"])
        self._send({"re": message["id"]})

    # Forks

    @contextlib.contextmanager
    def _children_in(self, pidfd: int | None) -> Iterator[None]:
        """Let forks made meanwhile be born in that sandbox's process namespace; None: in a new one."""
        if pidfd is None:
            kernel.unshare(kernel.CLONE_NEWPID)
        else:
            kernel.setns(pidfd, kernel.CLONE_NEWPID)
        try:
            yield
        finally:
            kernel.setns(self._own_pids, kernel.CLONE_NEWPID)

    def _fork(self, request: int, sandbox: Sandbox, work: Work, *, is_process: bool = False) -> int:
        """Do `work` in a child; what it reports, or its exec, answers `request`."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
            if pid == 0:
                _work_and_exit(work, writer)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._children[pid] = Child(sandbox, request, is_process=is_process)
        sandbox.children.add(pid)
        self._reports[reader] = Report(request, sandbox, is_process=is_process)
        self._poll.register(reader, select.POLLIN)
        return pid

    def _on_report(self, descriptor: int) -> None:
        report = self._reports[descriptor]
        data = os.read(descriptor, 1 << 16)
        report.data += data
        if data:
            return
        self._poll.unregister(descriptor)
        os.close(descriptor)
        del self._reports[descriptor]
        outcome = json.loads(report.data) if report.data else {}
        if not report.data and not report.is_process:
            outcome = {"fault": "its process ended before it was done"}
        if "fault" in outcome:
            self._fault(report.request, report.sandbox, outcome["fault"])
        else:
            self._send({"re": report.request, **outcome})

    def _collect(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._on_end(pid, os.waitstatus_to_exitcode(status))

    def _on_end(self, pid: int, status: int) -> None:
        child = self._children.pop(pid)
        sandbox = child.sandbox
        sandbox.children.discard(pid)
        if child.is_process:
            lost = status == -signal.SIGKILL and self._is_ending(sandbox)
            code = status if status >= 0 else 128 - status
            self._send({"exit": child.request, "status": code, "lost": lost})
        if pid == sandbox.first:
            sandbox.first = 0
            os.close(sandbox.pidfd)
            if not sandbox.stopping:
                self._send({"down": sandbox.group, "why": self._why(sandbox, status)})
        self._finish(sandbox)

    def _finish(self, sandbox: Sandbox) -> None:
        """Answer the requests to stop, once nothing of the sandbox is left."""
        if not sandbox.stopping or sandbox.children:
            return
        left = self._cgroups.processes(sandbox.group)
        if left:
            for message in sandbox.stopping:
                self._fault(message["id"], None, f"processes {sorted(left)} are still there")
            sandbox.stopping.clear()
            return
        self._cgroups.remove(sandbox.group)
        if not all(message["keep"] for message in sandbox.stopping):
            root.forget(self._vault, self._place, sandbox.group)
        del self._sandboxes[sandbox.group]
        for message in sandbox.stopping:
            self._send({"re": message["id"]})

    # Questions

    def _running(self, message: wire.Message) -> Sandbox:
        sandbox = self._sandboxes.get(message["sandbox"])
        if sandbox is None or not sandbox.first:
            raise ProcessLookupError(errno.ESRCH, "the sandbox does not run")
        return sandbox

    def _is_ending(self, sandbox: Sandbox | None) -> bool:
        if sandbox is None or not sandbox.first or sandbox.stopping:
            return True
        return bool(int(_stat(sandbox.first)[_STAT_FLAGS]) & _EXITING)

    def _why(self, sandbox: Sandbox, status: int) -> str:
        if status == 0:
            return "its lifetime is over"
        if self._cgroups.oom_kills(sandbox.group):
            return f"out of memory (limit {sandbox.memory_mb} MB)"
        return f"its first process ended with status {status}"

    def _kill_session(self, pid: int, sandbox: Sandbox) -> None:
        """Until a pass finds nothing new: what is killed cannot fork any more, what it forked before is found next."""
        killed: set[int] = set()
        while new := ({pid} | self._session(pid, sandbox)) - killed:
            for process in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            killed |= new

    def _session(self, leader: int, sandbox: Sandbox) -> set[int]:
        found: set[int] = set()
        for pid in self._cgroups.processes(sandbox.group) or _all_processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if int(_stat(pid)[_STAT_SESSION]) == leader:
                    found.add(pid)
        return found

    def _fault(self, request: int, sandbox: Sandbox | None, text: str) -> None:
        self._send({"re": request, "fault": text, "lost": self._is_ending(sandbox)})

    def _send(self, message: wire.Message) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the loop sees the end of the socket next
            wire.send(self._control, message)

    def shut_down(self) -> None:
        """Kill every sandbox and remove what it has on this machine, its lease last."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        while self._children:
            del self._children[os.wait()[0]]
        for sandbox in self._sandboxes.values():
            with contextlib.suppress(OSError):  # its lease stays, and the next engine clears it
                self._cgroups.remove(sandbox.group)
                if sandbox.upper:
                    remove_tree(sandbox.upper)
                remove_tree(sandbox.lease)


def _work_and_exit(work: Work, writer: int) -> NoReturn:
    def report(message: wire.Message) -> None:
        os.write(writer, json.dumps(message).encode())

    try:
        signal.set_wakeup_fd(-1)
        work(report)
    except BaseException as error:
        report({"fault": str(error) or type(error).__name__})
    finally:
        os._exit(0)


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat behind the name, which may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _all_processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def _forbid_imports() -> None:
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()


def main() -> None:
    """Arguments: the control socket's descriptor, an empty directory to mount on."""
    control, place = socket.socket(fileno=int(sys.argv[-2])), sys.argv[-1]
    control.set_inheritable(False)  # it came through an exec; no process of a sandbox may have it
    os.umask(0o022)
    wire.prepare(control)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.rename_process("termloom")
    kernel.unshare(kernel.CLONE_NEWNS)
    # Not private: what the host unmounts must not stay busy because of us.
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    server = Server(control, place)
    _forbid_imports()
    gc.freeze()
    server.serve()
    server.shut_down()
