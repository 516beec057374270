"""Names of set-ups: a scheduler and its managers derive them alike from what an env_reset asks for."""

from __future__ import annotations

import hashlib

from callsheet.v1 import action_pb2

_DIGEST_BYTES = 16


def set_up_name(reset: action_pb2.EnvResetInput) -> str:
    """Returns the name of what a sandbox begins with: image, files, command, network and what commands take by default.

    It is empty if nothing can be kept.

    Two ends whose serializers differ find different names, and lose nothing but the knowledge of where it is kept.
    """
    if reset.repeat_set_up or not (reset.files or reset.HasField("set_up")):
        return ""
    asked = action_pb2.EnvResetInput()
    asked.CopyFrom(reset)
    # A manager itself looks at sizes: what it keeps serves whoever asks for no more than that sandbox had.
    asked.disk_mib = asked.max_processes = 0
    asked.guaranteed_memory = False
    if asked.HasField("defaults"):
        asked.defaults.ClearField("start_to_close")
    if asked.HasField("build"):
        asked.build.ClearField("timeout")
    return hashlib.blake2b(asked.SerializeToString(deterministic=True), digest_size=_DIGEST_BYTES).hexdigest()
