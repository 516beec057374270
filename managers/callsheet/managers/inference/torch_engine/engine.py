"""The engine's loop: a turn of one sequence after the other. No threads, no event loop."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from callsheet.managers.inference.driver import GenerateRequest, NonFiniteError, RequestRefusedError
from callsheet.managers.inference.torch_engine.abilities import torch_abilities
from callsheet.managers.inference.torch_engine.runner import Runner
from callsheet.managers.inference.torch_engine.sampling import choose_token
from callsheet.managers.inference.torch_engine.sequence import Sequence, StopTexts, TokenBytes
from callsheet.managers.models.requests import token_problem
from torch import Tensor

# Few, so that others wait little for their own; not fewer, as handing over takes as long as two small tokens.
TOKENS_A_TURN = 16


class TorchEngine:
    """A model and what is computed with it. Not thread-safe but for `sequence`.

    Attributes:
        version: The policy version of the weights in force.
        bounds: Which sequences it can take.
        abilities: What it can do.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        version: int = 0,
        prefill_chunk: int = 128,
        prefix_cache_tokens: int = 8192,
        token_bytes: TokenBytes | None = None,
        end_tokens: frozenset[int] = frozenset(),
    ) -> None:
        """Takes a model over.

        Args:
            runner: The model.
            version: Policy version of its weights.
            prefill_chunk: Prompt tokens computed in one piece; the grain of prefix reuse.
            prefix_cache_tokens: Prompt tokens whose KV is kept for reuse; 0 keeps none.
            token_bytes: What a token adds to the text; None where that is not known, so that stop texts are refused.
            end_tokens: The model's own tokens that end generation, unless a request ignores them.
        """
        self.version = version
        self.bounds = runner.bounds
        self._runner = runner
        self._chunk = prefill_chunk
        self._most_kept = prefix_cache_tokens if runner.in_chunks else 0
        self._token_bytes = token_bytes
        self._end_tokens = end_tokens
        self.abilities = torch_abilities(
            prefix_cache=self._most_kept > 0,
            stop_texts=token_bytes is not None,
            device=str(runner.device),
            half_precision=runner.half_precision,
        )
        self._replaced = 0
        # States of prompts by namespace and tokens; the least recently used comes first.
        self._prefixes: OrderedDict[tuple[str, tuple[int, ...]], Any] = OrderedDict()

    def sequence(self, request: GenerateRequest) -> Sequence:
        """Returns a request that is to be computed; called from any thread.

        Raises:
            RequestRefusedError: The prompt is empty, has ids outside the vocabulary, or leaves no room for a new token;
                or it has stop texts where no text is known.
        """
        sampling = request.sampling
        if sampling.stop and self._token_bytes is None:
            raise RequestRefusedError("no_tokenizer", "stop: this engine has no tokenizer; give stop_token_ids instead")
        problem = token_problem(request.prompt_token_ids, self.bounds, new_tokens=1)
        if problem is not None:
            raise RequestRefusedError(problem.reason, f"prompt_token_ids: {problem.message}")
        # A drawn seed also fits a signed 64-bit number, as many trainers have.
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        return Sequence(
            request=request,
            limit=min(sampling.max_new_tokens, self.bounds.context_length - len(request.prompt_token_ids)),
            seed=seed,
            stream=random.Random(seed),
            stop_texts=StopTexts(sampling.stop, self._token_bytes) if sampling.stop and self._token_bytes else None,
            token_bytes=self._token_bytes,
            end_tokens=sampling.end_tokens(self._end_tokens),
        )

    @torch.inference_mode()
    def turn(self, sequence: Sequence) -> None:
        """Computes a chunk of a sequence's prompt, or a few tokens behind it.

        Raises:
            NonFiniteError: Its logits are not finite.
        """
        if sequence.ended is not None:
            return
        # What threads of kernels take is known of the whole process alone.
        clock = time.process_time if torch.get_num_threads() > 1 else time.thread_time
        started = clock()
        if sequence.state is None:
            self._begin(sequence)
        if sequence.prefilled < len(sequence.request.prompt_token_ids):
            self._prefill(sequence)
        else:
            for _ in range(TOKENS_A_TURN):
                if sequence.ended is None:
                    self._take(sequence, self._runner.feed(sequence.token_ids[-1:], sequence.state))
        sequence.cpu_s += clock() - started

    @torch.inference_mode()
    def replace_weights(self, state: Mapping[str, Tensor], version: int) -> list[str]:
        """Changes weights between two turns. Sequences that have begun keep the KV that the old weights made.

        Returns:
            Names of tensors in which the model is not what came.
        """
        self._runner.load_state(state)
        self.version = version
        self._replaced += 1
        self._prefixes.clear()
        return self._runner.differing(state)

    def _begin(self, sequence: Sequence) -> None:
        """Gives a sequence its state, with the longest prefix of its prompt that is known.

        The last token is always computed, as its logits are needed. What is reused has the very bits that computing it
        again would give: it was cut at multiples of the same chunk.
        """
        namespace, prompt = sequence.request.kv_namespace, sequence.request.prompt_token_ids
        known = [
            key
            for key in self._prefixes
            if key[0] == namespace and len(key[1]) < len(prompt) and key[1] == prompt[: len(key[1])]
        ]
        like = None
        if known:
            longest = max(known, key=lambda key: len(key[1]))
            self._prefixes.move_to_end(longest)
            like, sequence.prefilled = self._prefixes[longest], len(longest[1])
        sequence.cached_tokens = sequence.prefilled
        sequence.weights = self._replaced
        sequence.state = self._runner.start(sequence.most_tokens, like)

    def _prefill(self, sequence: Sequence) -> None:
        prompt, begin = sequence.request.prompt_token_ids, sequence.prefilled
        end = min(begin + self._chunk, len(prompt)) if self._runner.in_chunks else len(prompt)
        logits = self._runner.feed(prompt[begin:end], sequence.state)
        sequence.prefilled = end
        # The last one of the whole chunks that a later prompt like this one can begin with.
        if end == (len(prompt) - 1) // self._chunk * self._chunk and sequence.weights == self._replaced:
            self._keep(sequence, prompt[:end])
        if end == len(prompt) and sequence.ended is None:
            self._take(sequence, logits)

    def _keep(self, sequence: Sequence, tokens: tuple[int, ...]) -> None:
        key = (sequence.request.kv_namespace, tokens)
        if len(tokens) > self._most_kept or key in self._prefixes:
            return
        self._prefixes[key] = self._runner.start(len(tokens), sequence.state)
        while sum(len(kept) for _, kept in self._prefixes) > self._most_kept:
            self._prefixes.popitem(last=False)

    def _take(self, sequence: Sequence, logits: Tensor) -> None:
        token, log_prob = choose_token(logits, sequence.request.sampling, sequence.stream.random())
        if not math.isfinite(log_prob):
            message = f"policy version {self.version} gave logits that are not finite"
            raise NonFiniteError(message)
        sequence.append(token, log_prob, self.version)
