"""What only a machine with a GPU can show; prints its figures as one JSON object.

    scripts/gpu.py                            on its first GPU; without one it says so and fails
    scripts/gpu.py --device cpu --layers 2    the same steps with tiny models and without tests, which tries the script

The tests marked `gpu` run first. Then an engine serves a model with random weights, of about a billion parameters in
bf16, and gets new weights again and again: the embedded engine, and SGLang where it is installed. Last two such models
are hosted in memory for one of them, each evicted when the other is asked, beside plain copies from pinned memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import anyio
import structlog
import torch
from callsheet.managers.inference.driver import EngineDriver, GenerateRequest, Sampling, UpdateMode, WeightUpdate
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.sglang_engine.kind import sglang_engine
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.torch_engine.loading import load_own_model
from callsheet.managers.inference.torch_engine.settings import Dtype, TorchSettings
from callsheet.managers.inference.weights import DiskWeights
from callsheet.managers.reward.hosted.executor import HostedModelsExecutor
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ModelTask
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.hosted.tickets import ModelAnswer
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.hf_models import save_model, seeded_model  # noqa: E402

MARKED = (
    "-m",
    "pytest",
    "-q",
    "-m",
    "gpu",
    "tests/unit/managers/inference/test_models_on_gpu.py",
    "tests/unit/managers/reward/test_hosted_models_on_gpu.py",
    "tests/integration/test_costs_measured.py",
)
STEP_TIMEOUT_S = 180
LAYERS, WIDTH, TINY_WIDTH, HEAD = 16, 2048, 128, 64
ROUNDS = 5
SAMPLING = Sampling(max_new_tokens=32, temperature=0, ignore_eos=True)
SGLANG = f"{sys.executable} -m sglang.launch_server --dtype bfloat16 --mem-fraction-static 0.5 --model-path "


def make_models(directory: Path, layers: int, width: int) -> list[Path]:
    """Writes two models of one shape with random weights."""
    shape = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": max(1, width // HEAD // 4),
        "head_dim": HEAD,
        "initializer_range": 0.02,
    }
    return [save_model(directory / str(seed), seeded_model("llama", seed, **shape).bfloat16()) for seed in range(2)]


def size_of(model: Path) -> int:
    """Bytes of a model's weights."""
    return sum(path.stat().st_size for path in model.glob("*.safetensors"))


def figures(took: Sequence[float], size: int) -> dict[str, float]:
    """Seconds of moving so many bytes, and the rate."""
    return {
        "median_s": round(median(took), 4),
        "longest_s": round(max(took), 4),
        "gb_s": round(size / median(took) / 1e9, 3),
    }


async def publish(driver: EngineDriver, models: Sequence[Path]) -> dict[str, float]:
    """Gives an engine that has the first model the weights of one after the other's.

    Raises:
        SystemExit: The engine does not answer with the weights that it was given.
    """
    took, said = [], []
    for version in range(ROUNDS + 1):
        began = time.perf_counter()
        await driver.update_weights(WeightUpdate(DiskWeights(str(models[version % 2])), version, UpdateMode.DRAIN))
        took.append(time.perf_counter() - began)
        said.append((await driver.generate(GenerateRequest(f"{version:04}", tuple(range(5, 37)), SAMPLING))).token_ids)
    await driver.close()
    if said[0] == said[1] or said[2:] != said[:-2]:
        raise SystemExit("gpu: an engine answers with other weights than it was given")
    return figures(took, size_of(models[0]))


async def publish_to_engines(models: Sequence[Path], device: str) -> dict[str, object]:
    """Publishes to the engines that are here."""
    own, settings = TorchSettings(device=device, dtype=Dtype.BFLOAT16), InferenceSettings(kv_cache_tokens=4096)
    with anyio.fail_after(STEP_TIMEOUT_S):
        found: dict[str, object] = {"embedded": await publish(load_own_model(models[0], own, settings), models)}
    if device == "cpu" or importlib.util.find_spec("sglang") is None:
        return found | {"sglang": "not run: there is no GPU, or it is not installed"}
    launched = InferenceSettings(engine="sglang", launches=(SGLANG + str(models[0]),), launch_logs=models[0].parent)
    with anyio.fail_after(STEP_TIMEOUT_S):
        return found | {
            "sglang": await publish(
                sglang_engine(SGLangSettings(attach_timeout=STEP_TIMEOUT_S), launched).load(), models
            )
        }


async def evict_on_execution(models: Sequence[Path], device: str) -> list[float]:
    """Asks hosted models in turn, with memory for one; returns the seconds that each took to come in.

    Raises:
        SystemExit: One did not answer.
    """
    specs = tuple(ModelSpec(name=path.name, directory=path, kind=ModelTask.TEACHER) for path in models)
    room = (size_of(models[0]) >> 20) + 1
    settings = HostedSettings(models=specs, memory_budget_mib=room, device=device, prewarm=False)
    executor, waits = HostedModelsExecutor(settings), []
    with anyio.fail_after(STEP_TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor.serve)
            for turn in range(2 * ROUNDS):
                asked = executor.host.ask(specs[turn % 2].name, {"token_ids": [5, 6, 7], "prompt_token_ids": [8]})
                await asked.done.wait()
                if not isinstance(asked.answer, ModelAnswer):
                    raise SystemExit(f"gpu: a hosted model did not answer: {asked.answer}")
                waits.append(asked.restore_s)
            tasks.cancel_scope.cancel()
    await executor.close()
    # With their first turns they are opened as well, which happens once.
    return waits[2:]


def copy_plainly(model: Path, device: str) -> list[float]:
    """Copies a model's weights from pinned memory, as `.to()` does; returns the seconds."""
    loaded = (tensor for path in model.glob("*.safetensors") for tensor in load_file(path).values())
    kept, took = [tensor if device == "cpu" else tensor.pin_memory() for tensor in loaded], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        moved = [tensor.to(device, non_blocking=True, copy=True) for tensor in kept]
        if device != "cpu":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - began)
        del moved
    return took


def main() -> int:
    """Runs all of it; returns the exit code."""
    parser = argparse.ArgumentParser(description="What only a machine with a GPU can show.")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to try the script")
    parser.add_argument("--layers", type=int, default=LAYERS)
    chosen = parser.parse_args()
    on_card = chosen.device != "cpu"
    if on_card and not torch.cuda.is_available():
        raise SystemExit("gpu: there is no GPU here: torch sees no CUDA device; nothing was run")
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    code = subprocess.run([sys.executable, *MARKED], cwd=ROOT, check=False).returncode if on_card else 0
    with tempfile.TemporaryDirectory(prefix="callsheet-gpu-") as place:
        models = make_models(Path(place), chosen.layers, WIDTH if on_card else TINY_WIDTH)
        size = size_of(models[0])
        print(
            json.dumps(
                {
                    "device": torch.cuda.get_device_name(chosen.device) if on_card else "cpu",
                    "tests": ("FAILED" if code else "passed") if on_card else "not run without a GPU",
                    "model_bytes": size,
                    "publish": anyio.run(publish_to_engines, models, chosen.device),
                    "evict_on_execution": figures(anyio.run(evict_on_execution, models, chosen.device), size),
                    "plain_pinned_copy": figures(copy_plainly(models[0], chosen.device), size),
                },
                indent=1,
            )
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
