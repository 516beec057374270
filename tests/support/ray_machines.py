"""Machines for Ray's autoscaler: raylets of this machine, which its monitor process starts and ends.

Ray's wheel lacks the defaults of its fake provider; as an external one it needs none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FakeMultiNodeProvider

HEAD_VARIABLES: Final = {
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
}

# Of what Ray does on machines that it reaches over SSH.
_LISTS: Final = (
    *("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands"),
    *("head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands"),
)


class Machines(FakeMultiNodeProvider):
    """The provider. What it starts finds its memory itself, as Ray's class has no way to say it."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: int, resources: dict[str, float], labels: Any
    ) -> None:
        has = {name: units for name, units in resources.items() if name != "memory"}
        super()._create_node_with_resources_and_labels(node_config, tags, count, has, labels)  # type: ignore[no-untyped-call]


def write_config(path: Path, address: str, resources: dict[str, float], most: int) -> None:
    """Writes a configuration with which Ray adds machines, and takes those away that were idle for 6 s.

    Args:
        path: Where.
        address: Of the cluster's control store.
        resources: What each machine has, the head's too.
        most: Machines beside the head's.
    """
    provider = {
        "type": "external",
        "module": f"{__name__}.{Machines.__name__}",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "gcs_address": address,
    }
    types = {
        "ray.head.default": {"resources": resources, "node_config": {}, "max_workers": 0},
        "machine": {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": most},
    }
    config = {
        "cluster_name": "test",
        "max_workers": most,
        "idle_timeout_minutes": 0.1,
        "provider": provider,
        "available_node_types": types,
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{key: [] for key in _LISTS},
    }
    path.write_text(json.dumps(config))
