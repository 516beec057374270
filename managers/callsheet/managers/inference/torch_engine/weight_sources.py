"""Brings new weights to the engine as tensors in memory, before anything of the running ones is touched."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from callsheet.managers.inference.driver import WeightUpdateError
from callsheet.managers.inference.torch_engine.runner import Runner
from callsheet.managers.inference.weights import DiskWeights, FirstWeights, GroupWeights, TensorWeights, WeightSource
from callsheet.managers.models.config_file import WeightsError
from callsheet.managers.models.weights import shapes
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

FirstState = Callable[[], Mapping[str, Tensor]]
"""Reads the weights that an engine was started with; blocks."""
_TRAINER_RANK = 0
_POLL_S = 0.1


class TransferGroups:
    """The groups that this process is in, by name."""

    def __init__(self) -> None:
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def receive(self, source: GroupWeights, timeout_s: float) -> dict[str, Tensor]:
        """Joins a group if it is not in it, and returns the tensors that the trainer broadcasts.

        Args:
            source: The group, and what will come.
            timeout_s: The longest wait for the group to form and for all tensors together.

        Raises:
            WeightsError: The group did not form, or a tensor did not come. The group is left then.
        """
        ends = time.monotonic() + timeout_s
        if not dist.is_available() or source.backend not in dist.Backend.backend_list:
            raise WeightsError(f"backend: {source.backend!r} is none that this torch has")
        if not self._lock.acquire(timeout=timeout_s):
            raise WeightsError(f"group {source.group_name}: another update did not end within {timeout_s:g} s")
        try:
            group = self._groups.get(source.group_name)
            if group is None:
                self._await_trainer(source, ends)
                group = _join(source, timedelta(seconds=max(1.0, ends - time.monotonic())))
            self._groups[source.group_name] = group
            return _receive(group, source, ends)
        except Exception as error:  # Whatever a backend raises, this group is of no use any more.
            self._leave(source.group_name)
            reason = (str(error).splitlines() or [""])[0]
            raise WeightsError(
                f"group {source.group_name} at {source.address}:{source.port}: {type(error).__name__}: {reason}"
            ) from error
        finally:
            self._lock.release()

    def close(self) -> None:
        """Leaves all groups, and waits for no trainer any more."""
        self._closed.set()
        for name in list(self._groups):
            self._leave(name)

    def _await_trainer(self, source: GroupWeights, ends: float) -> None:
        """Returns once somebody listens at the group's address.

        Torch's own wait for it cannot be given up, and aborts a process that ends meanwhile.
        """
        while True:
            left_s = ends - time.monotonic()
            if left_s <= 0 or self._closed.is_set():
                raise TimeoutError("nobody listens there")
            try:
                socket.create_connection((source.address, source.port), timeout=left_s).close()
            except OSError:
                self._closed.wait(min(_POLL_S, left_s))
            else:
                return

    def _leave(self, name: str) -> None:
        if (group := self._groups.pop(name, None)) is not None:
            c10d.destroy_process_group(group)


def join_group(
    *, backend: str, address: str, port: int, world_size: int, rank: int, group_name: str, timeout: timedelta
) -> dist.ProcessGroup:
    """Forms a group with the other members; blocks until all are there.

    Raises:
        Exception: Of torch's, in all variety: they did not come in time, or the address is wrong.
    """
    meeting = rendezvous(f"tcp://{address}:{port}", rank, world_size, timeout=timeout)
    store, _, _ = next(meeting)
    store.set_timeout(timeout)
    prefixed = c10d.PrefixStore(group_name, store)
    group: dist.ProcessGroup
    group, _ = c10d._new_process_group_helper(
        world_size, rank, [], dist.Backend(backend), prefixed, group_name=c10d.GroupName(group_name), timeout=timeout
    )
    c10d._world.pg_group_ranks[group] = {member: member for member in range(world_size)}
    return group


def _join(source: GroupWeights, timeout: timedelta) -> dist.ProcessGroup:
    return join_group(
        backend=source.backend,
        address=source.address,
        port=source.port,
        world_size=source.world_size,
        rank=source.rank,
        group_name=source.group_name,
        timeout=timeout,
    )


def _receive(group: dist.ProcessGroup, source: GroupWeights, ends: float) -> dict[str, Tensor]:
    device = "cuda" if source.backend == "nccl" else "cpu"
    received: dict[str, Tensor] = {}
    for spec in source.tensors:
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise WeightsError(f"{spec.name}: dtype {spec.dtype!r} is none of torch's")
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"{spec.name} did not come in time")
        tensor = torch.empty(spec.shape, dtype=dtype, device=device)
        work = dist.broadcast(tensor, src=_TRAINER_RANK, group=group, async_op=True)
        if work is not None and not work.wait(timedelta(seconds=left_s)):
            raise TimeoutError(f"{spec.name} did not come in time")
        received[spec.name] = tensor
    return received


class WeightSources:
    """Reads weights of all kinds of sources. Its methods block, and may be called from any thread."""

    def __init__(self, runner: Runner, first: FirstState | None = None) -> None:
        """Notes the shapes of a model that is awake, and how the weights are read again that it has."""
        self._runner = runner
        self._first = first
        self._shapes = shapes(runner.model)
        self._groups = TransferGroups()

    def read(self, source: WeightSource, timeout_s: float) -> Mapping[str, Tensor]:
        """Returns tensors by name, checked against the running model.

        Args:
            source: Where they are.
            timeout_s: The longest wait for a group.

        Raises:
            WeightUpdateError: They cannot be used, or did not come in time; the running weights are as they were.
        """
        try:
            state = self._read(source, timeout_s)
            broken = [name for name, values in state.items() if _holds_nan(values)]
            if broken:
                raise WeightsError(f"{len(broken)} tensors hold what is no number ({', '.join(broken[:5])})")
        except WeightsError as error:
            raise WeightUpdateError(str(error), intact=True) from error
        return state

    def _read(self, source: WeightSource, timeout_s: float) -> Mapping[str, Tensor]:
        match source:
            case DiskWeights(location):
                return self._runner.read_weights(Path(location.removeprefix("file://")))
            case TensorWeights(path):
                state = self._loaded(path)
                check_tensors({name: tuple(value.shape) for name, value in state.items()}, self._shapes, f"{path}")
                return state
            case GroupWeights(group_name=name, tensors=tensors):
                check_tensors({each.name: each.shape for each in tensors}, self._shapes, f"group {name}")
                return self._groups.receive(source, timeout_s)
            case FirstWeights():
                if self._first is None:
                    raise WeightsError("nobody knows where the first weights of this engine are")
                return self._first()

    def _loaded(self, path: Path) -> Mapping[str, Tensor]:
        state = _load(path)
        if all(name in self._shapes for name in state):
            return state
        try:
            return self._runner.named_as_in_memory(state)
        except WeightsError as error:
            raise WeightsError(f"{path}: {error}") from error

    def close(self) -> None:
        """Leaves all groups."""
        self._groups.close()


def _holds_nan(values: Tensor) -> bool:
    # A maximum is NaN if any value is, and takes a seventh of the time of a mask.
    return values.is_floating_point() and values.numel() > 0 and bool(values.max().isnan())


def check_tensors(given: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], place: str) -> None:
    """Refuses tensors that the running model does not have; some may be left out.

    Args:
        given: Shape by name.
        expected: Shape by name, of the running model.
        place: Where they come from, for the message.

    Raises:
        WeightsError: There are none, or names or shapes are not the model's.
    """
    if not given:
        raise WeightsError(f"{place}: has no tensors; there must be at least one")
    unknown = sorted(name for name in given if name not in expected)
    if unknown:
        raise WeightsError(
            f"{place}: {len(unknown)} of {len(given)} tensors are none of the running model's "
            f"({', '.join(unknown[:5])}); they must be named as in its state_dict()"
        )
    misshapen = [
        f"{name}: {shape} instead of {expected[name]}" for name, shape in given.items() if shape != expected[name]
    ]
    if misshapen:
        raise WeightsError(f"{place}: {len(misshapen)} tensors do not fit the model ({', '.join(misshapen[:5])})")


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read as a file of safetensors ({error})") from error
