"""Stands in for SGLang's kernels for CPUs, which are not on package indexes; for `make conformance-sglang` alone.

SGLang imports names of it at module level. On the path of a Llama or a Qwen 2 with torch's own attention only one of
them is called.
"""

from collections.abc import Callable
from typing import Any, NoReturn


def assign_req_to_token_pool_cpu(  # noqa: PLR0917 - as SGLang calls it
    req_pool_indices: Any, req_to_token: Any, start: Any, end: Any, out_cache_loc: Any, stride: Any
) -> None:
    """Notes which slots of the KV cache hold the tokens of each request."""
    at = 0
    for index, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[index, first:last] = out_cache_loc[at : at + last - first].to(req_to_token.dtype)
        at += last - first


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: there are no kernels for CPUs here")

    return missing
