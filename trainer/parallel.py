"""The learner's processes: one alone, or a team that `torchrun` started.

A team trains as one process does, to rounding. Its first process, the leader, runs the loop with sandboxes, rollouts
and hand-over; the others follow what it tells them (`trainer.follow`). Weights, gradients and moments are spread over
the devices (FSDP2); every process knows the whole batch and scores its own part.

Invariants:
- All processes of a team make the same collective calls in the same order. How many rows each of them scores is
  computed by all from the same batch, not agreed on; who has fewer fills up with rows in which nothing is scored.
- Gradients are summed, each part weighted by its share of the whole mini-batch, so their sum is that of one process.
- Nothing outside the learner sees spread weights: the leader holds a plain copy, brought up to date after each update,
  and that is what is handed over, exported and probed.
- A process that dies takes the team down: `torchrun` ends the others.
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from trainer.batch import Packed
from trainer.model import Row, backbone

Parts = Mapping[str, Sequence[float]]
"""Measurements by name, one for each part of a mini-batch."""


def own_device() -> torch.device:
    """The accelerator of this process, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


class Team:
    """One process alone: what it asks of the others is done by itself. `Ranks` is the team of several."""

    rank = 0
    size = 1

    def spread(self, module: nn.Module, *, bf16: bool) -> nn.Module:
        """The module whose weights are trained; of the followers' modules nothing is read."""
        del bf16
        return module

    def precision(self, device: torch.device, *, bf16: bool) -> AbstractContextManager[Any]:
        """In which a forward pass runs: weights stay float32, bfloat16 is what is computed in."""
        return torch.autocast(device.type, torch.bfloat16, enabled=bf16)

    def deal(self, rows: list[Row]) -> list[Row]:
        """This process's part of a batch's rows."""
        return rows

    def fill(self, rows: list[Row], count: int, device: torch.device) -> list[Row]:
        """`rows`, filled up to `count`."""
        del count, device
        return rows

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        return tensor

    def whole(self, tensor: Tensor) -> Tensor:
        """A weight or norm that may be spread, whole."""
        return tensor

    def collect(self, parts: Parts) -> Parts:
        """The measurements of all processes."""
        return parts

    def agree(self, value: bool) -> bool:
        """What the leader says."""
        return value

    def share(self, value: Any) -> Any:
        """The leader's value, in all processes; the others' is not looked at."""
        return value

    def tell(self, name: str, **arguments: Any) -> None:
        """Let the followers do what the leader is about to do."""


ALONE = Team()


class Ranks(Team):
    """Several processes. Made by `open_team`.

    Commands travel in a group of their own that waits as long as rollouts take; the learner's collectives keep their
    time limits, so that a hang among them is noticed.
    """

    def __init__(self) -> None:
        from torch import distributed
        from torch.distributed.device_mesh import init_device_mesh

        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.device = own_device()
        self._mesh = init_device_mesh(self.device.type, (self.size,))
        self._commands = distributed.new_group(backend="gloo", timeout=timedelta(days=30))

    def spread(self, module: nn.Module, *, bf16: bool) -> nn.Module:
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
        from torch.distributed.tensor import DTensor, distribute_tensor

        shell = _allocated(self._say(_shell(module) if self.rank == 0 else None))
        options: dict[str, Any] = {"mesh": self._mesh, "reshard_after_forward": True}
        if bf16:
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*backbone(shell.get_submodule("model")).layers, shell):
            fully_shard(part, **options)
            assert isinstance(part, FSDPModule)
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        source = dict(module.named_parameters())
        with torch.no_grad():
            for name, weight in shell.named_parameters():
                assert isinstance(weight, DTensor)
                full = source[name].to(self.device) if self.rank == 0 else torch.empty(weight.shape, device=self.device)
                weight.copy_(distribute_tensor(full, self._mesh, weight.placements))
        return shell

    def precision(self, device: torch.device, *, bf16: bool) -> AbstractContextManager[Any]:
        del device, bf16  # the spread module computes in bfloat16 by itself
        return nullcontext()

    def deal(self, rows: list[Row]) -> list[Row]:
        return self.fill(rows[self.rank :: self.size], -(-len(rows) // self.size), self.device)

    def fill(self, rows: list[Row], count: int, device: torch.device) -> list[Row]:
        return rows + [_nothing(device)] * (count - len(rows))

    def sum(self, tensor: Tensor) -> Tensor:
        from torch import distributed

        distributed.all_reduce(tensor)
        return tensor

    def whole(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def collect(self, parts: Parts) -> Parts:
        from torch import distributed

        every: list[Any] = [None] * self.size
        distributed.all_gather_object(every, dict(parts), group=self._commands)
        return merged(every)

    def agree(self, value: bool) -> bool:
        return bool(self._say(value))

    def share(self, value: Any) -> Any:
        return self._say(value)

    def tell(self, name: str, **arguments: Any) -> None:
        if self.rank == 0:
            self._say((name, arguments))

    def meet(self) -> None:
        """Wait until every process is here."""
        from torch import distributed

        distributed.barrier(self._commands)

    def hear(self) -> tuple[str, dict[str, Any]]:
        """What the leader tells next."""
        name, arguments = self._say(None)
        return name, arguments

    def _say(self, value: Any) -> Any:
        """The leader's value, in all processes."""
        from torch import distributed

        box = [value]
        distributed.broadcast_object_list(box, src=0, group=self._commands)
        return box[0]


@contextmanager
def open_team() -> Iterator[Team]:
    """The team that this process belongs to: alone, unless `torchrun` started several. When the leader leaves, it tells
    the followers; when it fails, it says nothing to processes that may wait for it elsewhere: `torchrun` ends them."""
    if not in_team():
        yield ALONE
        return
    from torch import distributed

    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    team = Ranks()
    yield team
    team.tell("leave")
    team.meet()  # who takes the group down while another still speaks in it ends that one
    distributed.destroy_process_group()


def in_team() -> bool:
    """Whether this is one of several processes that `torchrun` started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_follower() -> bool:
    """Whether this is one of `torchrun`'s processes, and not its first."""
    return in_team() and os.environ.get("RANK", "0") != "0"


def merged(every: Iterable[Parts]) -> Parts:
    """Measurements of several processes under their common names."""
    together: dict[str, list[float]] = defaultdict(list)
    for parts in every:
        for name, values in parts.items():
            together[name].extend(values)
    return together


def _nothing(device: torch.device) -> Row:
    """A row of one token in which nothing is scored: whoever runs it takes part in the gathering of weights."""
    zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return Packed(ids=zero, positions=zero, segments=zero, source=zero), zero.new_zeros(0)


def _shell(module: nn.Module) -> nn.Module:
    """The module without its weights: small enough to be sent."""
    without = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in module.parameters()
    }
    return copy.deepcopy(module, without)


def _allocated(shell: nn.Module) -> nn.Module:
    """The shell with memory for its weights; tied weights stay tied. Pages that nobody writes take no memory."""
    made: dict[int, nn.Parameter] = {}
    for part in shell.modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                empty = nn.Parameter(torch.empty_like(weight, device="cpu"), requires_grad=weight.requires_grad)
                part._parameters[name] = made.setdefault(id(weight), empty)
    return shell
