"""The worker of a hosted model that an inference server has."""

from __future__ import annotations

import anyio
from callsheet.managers.inference.http_engine.client import EngineHttp
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ServerEngine
from callsheet.managers.reward.hosted.servers.server import RewardServer
from callsheet.managers.reward.hosted.servers.sglang import SGLangRewardServer
from callsheet.managers.reward.hosted.servers.vllm import VLLMRewardServer
from callsheet.managers.reward.hosted.servers.worker import ServerWorker
from callsheet.managers.reward.hosted.settings import HostedSettings


def server_worker(spec: ModelSpec, settings: HostedSettings, memory: anyio.Lock) -> ServerWorker:
    """Returns a worker that is not connected yet.

    Args:
        spec: The model, with the url of its server.
        settings: What that server asks for.
        memory: Held while memory changes hands.
    """
    http = EngineHttp(spec.url, settings.server_api_key)
    server: RewardServer
    if spec.engine is ServerEngine.VLLM:
        server = VLLMRewardServer(http, sleep_level=spec.sleep_level, can_sleep=not spec.pinned)
    else:
        server = SGLangRewardServer(http, can_sleep=not spec.pinned)
    return ServerWorker(spec, server, memory)
