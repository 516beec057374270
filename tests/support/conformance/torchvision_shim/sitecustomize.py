"""Lets engines start on a CPU; for `make conformance-sglang` and `make conformance-vllm` alone.

The wheel of torchvision is built for CUDA: on a torch for CPUs its operators are never registered, and the import fails
while it describes two of them. The engines use its image transforms only, so that declaring the two is enough.
"""

import os

if os.environ.get("CALLSHEET_CONFORMANCE_SHIM") == "1":
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
