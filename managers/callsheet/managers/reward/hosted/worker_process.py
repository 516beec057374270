"""A worker: a process that holds models and answers for them. It runs as a program, with pipes as stdin and stdout.

Two threads do its work: one computes batches, the other opens, restores and evicts. So a model comes while another one
computes. The manager sees to it that nothing leaves while it runs. The process ends with its stdin.
"""

from __future__ import annotations

import os
import queue
import resource
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import torch
import transformers
from callsheet.managers.reward.hosted import frames
from callsheet.managers.reward.hosted.answers import AnsweringModel, is_out_of_memory
from callsheet.managers.reward.hosted.arena import WeightsArena
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ModelTask
from callsheet.managers.reward.hosted.skeleton import ModelSkeleton

_COMPUTES = "answer"


class ModelWorker:
    """The models of this process.

    Args:
        hello: The manager's first message: devices, their budget, and what else it sets.
    """

    def __init__(self, hello: dict[str, Any]) -> None:
        shared = hello.get("memory_file")
        self._arenas = [WeightsArena(device, hello["budget_bytes"], shared) for device in hello["devices"]]
        self._devices: list[str] = hello["devices"]
        self._parked = Path(hello["parked_directory"])
        self._scratch_bytes: int | None = hello.get("scratch_bytes")
        self.threads = int(hello["threads"])
        self._models: dict[str, AnsweringModel] = {}

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Does what a message asks for and returns the answer."""
        # What threads of kernels take is known of the whole process alone.
        clock = time.process_time if self.threads > 1 else time.thread_time
        began, cpu = time.perf_counter(), clock()
        try:
            answer: dict[str, Any] = getattr(self, f"_{message['do']}")(message)
        except Exception as error:  # Whatever it is, the manager must learn of it.
            kind = "out_of_memory" if is_out_of_memory(error) else "failed"
            return {"id": message["id"], "error": kind, "message": f"{type(error).__name__}: {error}"}
        answer.update(id=message["id"], seconds=time.perf_counter() - began, cpu_s=clock() - cpu)
        return answer

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Builds a model without weights; what lies in files is told."""
        given = message["model"]
        spec = ModelSpec(**{**given, "directory": Path(given["directory"]), "kind": ModelTask(given["kind"])})
        old = self._models.pop(spec.name, None)
        parked = self._parked / message["parked_name"]
        if message["fresh"]:
            shutil.rmtree(parked, ignore_errors=True)
            _forget(old)
        skeleton = ModelSkeleton(spec.directory, spec.kind, parked)
        tokenizer = _tokenizer(spec.directory)
        self._models[spec.name] = AnsweringModel(spec, skeleton, tokenizer, self._devices[0])
        return {"size": skeleton.layout.size}

    def _restore(self, message: dict[str, Any]) -> dict[str, Any]:
        """Copies a model's weights to its place, and has it answer the canary before anything else."""
        model = self._models[message["model"]]
        arena, offset = self._arenas[message["device"]], message["offset"]
        model.use(str(arena.device))
        arena.restore(model.skeleton.layout, offset)
        model.skeleton.bind(arena, offset)
        return {"canary": model.canary()}

    def _evict(self, message: dict[str, Any]) -> dict[str, Any]:
        if (model := self._models.get(message["model"])) is not None:
            model.skeleton.unbind()
        return {}

    def _close(self, message: dict[str, Any]) -> dict[str, Any]:
        """Forgets a model, and lets the kernel forget its files."""
        _forget(self._models.pop(message["model"], None))
        return {}

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        model = self._models[message["model"]]
        self._limit_memory(self._scratch_bytes)
        try:
            return {"answers": model.answer(message["questions"], message["max_batch_tokens"])}
        finally:
            self._limit_memory(None)

    def _limit_memory(self, more_bytes: int | None) -> None:
        """Lets this process take so many more bytes of its own, so that too much fails in one request."""
        if self._scratch_bytes is not None:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            soft = hard if more_bytes is None else _data_bytes() + more_bytes
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _forget(model: AnsweringModel | None) -> None:
    """Has the kernel forget what it keeps of a model's files: they are read from the disk next."""
    for part in model.skeleton.layout.parts if model is not None else ():
        if part.path.exists():
            file = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def _tokenizer(directory: Path) -> Any:
    """The directory's tokenizer; None if there is none."""
    if not any((directory / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/self/status has no VmData")


def _work(worker: ModelWorker, messages: queue.SimpleQueue[dict[str, Any] | None], answers: _Answers) -> None:
    torch.set_num_threads(worker.threads)
    while (message := messages.get()) is not None:
        answers.write(worker.handle(message))


class _Answers:
    """The way back to the manager, for both threads."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def write(self, message: dict[str, Any]) -> None:
        """Sends a message."""
        with self._lock:
            self._pipe.write(frames.encode(message))
            self._pipe.flush()


def main() -> None:
    """Serves until stdin ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = _Answers(os.fdopen(os.dup(1), "wb"))
    # What a library prints must not get among the answers.
    os.dup2(2, 1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    hello = frames.read(requests)
    if hello is None:
        return
    worker = ModelWorker(hello)
    queues: dict[bool, queue.SimpleQueue[dict[str, Any] | None]] = {
        True: queue.SimpleQueue(),
        False: queue.SimpleQueue(),
    }
    threads = [threading.Thread(target=_work, args=(worker, each, answers), daemon=True) for each in queues.values()]
    for thread in threads:
        thread.start()
    answers.write({"id": 0, "ready": True})
    while (message := frames.read(requests)) is not None:
        queues[message["do"] == _COMPUTES].put(message)
    # Whoever asked is gone: what still runs is of no use.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
