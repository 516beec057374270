"""Publishes the trainer's weights as policy versions, so that engines generate with them before the next rollout.

They are those that engines serve: of the whole model, with adapters merged into it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from callsheet.client import Canary, Tensors, WeightsNotProvedError
from callsheet.client.words.weights import Source, UpdateModeName
from callsheet.integrations.trl.rollout import CallsheetRollout
from callsheet.integrations.trl.session import TrainerSession
from transformers import TrainerCallback

logger = logging.getLogger(__name__)
CANARY_PROMPT: Final = (1, 2, 3, 5, 8, 13, 21, 34)
CANARY_TOKENS: Final = 8
_PEFT_PREFIX: Final = "base_model.model."
_WRAPPERS: Final = ("module", "_orig_mod")
"""Attributes under which a model lies in what spreads it over processes, and in what `torch.compile` makes of it."""


class VersionPublisher:
    """Publishes weights of one job, each under the next version.

    Args:
        session: The job.
        service: Whose engines: the service that generates.
        mode: What becomes of requests that run meanwhile; see `Job.publish`.
        at_once: The most engines that update at a time.
        wait_s: The longest wait until the engines have proved the weights; 0 does not wait.
    """

    def __init__(
        self,
        session: TrainerSession,
        *,
        service: str = "policy",
        mode: UpdateModeName = "drain",
        at_once: int = 1,
        wait_s: float = 600.0,
    ) -> None:
        self.session = session
        self.mode: UpdateModeName = mode
        self.service = service
        self.at_once = at_once
        self.wait_s = wait_s
        self.version: int | None = None

    def publish(self, source: Source, canary: Canary | None = None) -> int:
        """Publishes weights, waits until they are served, and returns their version.

        Raises:
            WeightsNotProvedError: After `wait_s` no engine has proved them.
            FailedPreconditionError: Another open job publishes weights for the service, or the service is not clear.
            AccessDeniedError: The token does not name the service, which is reserved, or used by another open job.
        """
        return self.session.run(self._publish(source, canary))

    def next_version(self) -> int:
        """Returns the version that the next publish will have."""
        return self.session.run(self._next())

    async def _next(self) -> int:
        if self.version is None:
            # A trainer that was started again goes on from the newest version that the scheduler knows.
            self.version = (await (await self.session.job()).status()).policy_version
        return self.version + 1

    async def _publish(self, source: Source, canary: Canary | None) -> int:
        job, version = await self.session.job(), await self._next()
        # A publish that fails may have been accepted all the same: its version is not taken again.
        self.version = version
        await job.publish(
            version,
            source,
            mode=self.mode,
            service=self.service,
            at_once=self.at_once,
            canary=canary,
            wait_s=self.wait_s,
        )
        return version


class PublishWeights(TrainerCallback):
    """A callback that publishes the policy's weights at the begin of training and after steps of the optimiser.

    With `use_vllm=False` TRL pushes weights nowhere. Engines would go on with those that they began with. Adapters of
    PEFT are merged into what is published, and the training goes on with them apart.

    Args:
        rollout: The rollouts. Their job publishes the weights, for the service that generates for them.
        every: After how many steps the weights are published. The policy is so many steps behind at most.
        directory: A place that trainer and engines share, for weights as saved models; with tokens it lies below
            `--weights-below` of the engines' managers. None sends the tensors along, which engines take that run in
            their manager's process.
        keep: How many saved models stay in the directory.
        canary: Whether the trainer's own answer proves the engines. Switch it off where trainer and engine compute in
            numbers so different that log-probabilities do not agree within the engine's tolerance.
        close_job: Whether the end of training closes the job.
        mode: See `VersionPublisher`, as for all that follows.
        at_once: The most engines that update at a time.
        wait_s: The longest wait until the engines have the weights.
    """

    def __init__(
        self,
        rollout: CallsheetRollout,
        *,
        every: int = 1,
        directory: Path | None = None,
        keep: int = 2,
        canary: bool = True,
        close_job: bool = True,
        mode: UpdateModeName = "drain",
        at_once: int = 1,
        wait_s: float = 600.0,
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.publisher = VersionPublisher(
            rollout.session, service=rollout.model, mode=mode, at_once=at_once, wait_s=wait_s
        )
        self.every = every
        self.directory = directory
        self.keep = keep
        self.canary = canary
        self.close_job = close_job

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Publishes the weights that training begins with."""
        self._publish(state, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Publishes the weights of a step."""
        if state.global_step % self.every == 0:
            self._publish(state, kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the job: what it held is free."""
        if self.close_job and state.is_world_process_zero:
            self.publisher.session.close_job()

    def _publish(self, state: Any, model: Any) -> None:
        plain = unwrapped(model)
        error: Exception | None = None
        if state.is_world_process_zero:
            try:
                with whole_weights(plain) as (whole, weights):
                    canary = canary_of(whole) if self.canary else None
                    source = self._source(whole, weights)
                version = self.publisher.publish(source, canary)
                self._remove_old(version)
                logger.info("published version %d of the weights at step %d", version, state.global_step)
            except Exception as raised:
                error = raised
        # Without a word of it the others would wait until torch's own timeout.
        told = told_by_first("" if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        if told:
            raise WeightsNotProvedError(f"the first process did not publish the weights: {told}")

    def _source(self, model: Any, weights: Mapping[str, Any]) -> Source:
        if self.directory is None:
            return Tensors(tensors_of(weights))
        place = self.directory / f"version-{self.publisher.next_version()}"
        model.save_pretrained(place, state_dict=dict(weights))
        return place

    def _remove_old(self, version: int) -> None:
        """Removes saved models once a newer one is served: engines may need the one before until then."""
        if self.directory is not None:
            for old in saved_before(self.directory, version, self.keep):
                shutil.rmtree(old, ignore_errors=True)


def saved_before(directory: Path, version: int, keep: int) -> list[Path]:
    """Returns the saved models that are to go: all but the newest `keep`."""
    numbered = [(path.name.removeprefix("version-"), path) for path in directory.glob("version-*")]
    return [path for number, path in numbered if number.isdecimal() and int(number) <= version - keep]


def tensors_of(state: Mapping[str, Any]) -> bytes:
    """Returns tensors as a file of safetensors. Of those that share memory the first is in it."""
    from safetensors.torch import save

    seen: set[tuple[int, tuple[int, ...]]] = set()
    kept: dict[str, Any] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if place in seen and tensor.numel():
            continue
        seen.add(place)
        kept[name] = tensor.detach().to("cpu").contiguous()
    return save(kept)


def canary_of(model: Any) -> Canary:
    """Returns what a model answers greedily to the canary prompt, with the log-probability of each token."""
    import torch

    training = [module for module in model.modules() if module.training]
    model.eval()
    tokens = [token % model.config.get_text_config().vocab_size for token in CANARY_PROMPT]
    prompt, log_probs = tuple(tokens), []
    try:
        with torch.no_grad():
            for _ in range(CANARY_TOKENS):
                given = torch.tensor([tokens], device=model.device)
                table = torch.log_softmax(model(input_ids=given).logits[0, -1].float(), dim=-1)
                token = int(table.argmax())
                tokens.append(token)
                log_probs.append(float(table[token]))
    finally:
        # Each module by itself: some may be kept from training.
        for module in training:
            module.training = True
    return Canary(prompt, tuple(tokens[len(prompt) :]), tuple(log_probs))


def told_by_first(text: str) -> str:
    """Returns the first process's text in each process of a training: the others wait for it."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return text
    told = [text]
    distributed.broadcast_object_list(told, src=0)
    return told[0]


def unwrapped(model: Any) -> Any:
    """Returns the model itself, adapters included, without what wraps it.

    Raises:
        ValueError: This process does not have all of its weights, or they cannot be merged with its adapter's.
    """
    while found := [name for name in _WRAPPERS if hasattr(model, name)]:
        model = getattr(model, found[0])
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id") or hasattr(parameter, "full_tensor"):
            raise ValueError(f"{name} is spread over processes; PublishWeights takes whole models only")
    if has_adapters(model):
        _check_mergeable(model)
    return model


def has_adapters(model: Any) -> bool:
    """Returns whether a model is one of PEFT."""
    return hasattr(model, "peft_config")


@contextmanager
def whole_weights(model: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Gives a model and its tensors by the names that its configuration has; adapters are merged meanwhile.

    Merging and its reverse round. The weights below the adapters are copied before and put back after, so that the
    training goes on with the same numbers. The copies lie in the memory of the CPU.

    Args:
        model: As `unwrapped` returns it.
    """
    if not has_adapters(model):
        yield model, model.state_dict()
        return
    kept = [
        (parameter, parameter.detach().to("cpu", copy=True))
        for layer in _adapted_layers(model)
        for parameter in layer.get_base_layer().parameters(recurse=False)
    ]
    try:
        model.merge_adapter()
        yield model.get_base_model(), _plain_names(model)
    finally:
        model.unmerge_adapter()
        for parameter, value in kept:
            parameter.data.copy_(value)


def _adapted_layers(model: Any) -> list[Any]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


def _check_mergeable(model: Any) -> None:
    kind = type(model.base_model).__name__
    if not hasattr(model.base_model, "merge_adapter"):
        raise ValueError(f"model has an adapter of {kind}, which cannot be merged; PublishWeights needs whole models")
    for layer in _adapted_layers(model):
        for name, parameter in layer.get_base_layer().named_parameters(recurse=False):
            if not parameter.is_floating_point():
                raise ValueError(
                    f"model: {name} of a {type(layer).__name__} is {parameter.dtype}; PublishWeights takes no "
                    "quantised models: engines could not load what it merges"
                )


def _plain_names(model: Any) -> dict[str, Any]:
    """Returns the tensors by the names that they have without an adapter; the adapter's own are left out."""
    found = {}
    active = tuple(f"modules_to_save.{name}." for name in model.active_adapters)
    for full, tensor in model.state_dict().items():
        name = full.removeprefix(_PEFT_PREFIX).replace(".base_layer.", ".")
        for saved in active:
            name = name.replace(saved, "")
        if model.base_model.prefix in name or "original_module." in name or "modules_to_save." in name:
            continue
        found[name] = tensor
    return found
