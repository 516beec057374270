"""Errors on the way to an image."""

from __future__ import annotations

from callsheet.managers.sandbox.errors import SandboxError
from callsheet.v1 import outcome_pb2


class ImageError(SandboxError):
    """An image is not there or cannot be used; the message says why."""

    kind = outcome_pb2.FAILURE_KIND_INFRA
    reason = "image_unavailable"


class ImageNotFoundError(ImageError):
    """No registry and no store has the image, for this machine at least: another try elsewhere would change nothing."""

    kind = outcome_pb2.FAILURE_KIND_ENV
    reason = "image_not_found"


class RegistryLimitedError(ImageError):
    """The registry was asked too often by this node, as it says itself; it is left alone for a while.

    Attributes:
        retry_after_s: Seconds after which it may be asked again, where it told so; None where it did not.
    """

    reason = "registry_limited"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ImageBuildError(ImageError):
    """A Dockerfile does not build, or not in time, or not here: another try elsewhere would change nothing."""

    kind = outcome_pb2.FAILURE_KIND_ENV
    reason = "image_build_failed"
