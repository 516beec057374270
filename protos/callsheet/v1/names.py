"""Names and limits of the contract, each written once. The scheduler's core reads them: they need no protobuf."""

from __future__ import annotations

from typing import Final

IMAGE_SERVICE_PREFIX: Final = "sandbox:"
"""A service for sandboxes with an image has this prefix before the image's name."""

ANY_IMAGE_SERVICE: Final = "sandbox:*"
"""The service of managers that can bring in images which they do not name, for instance from a registry."""

BUILD_SERVICE: Final = "sandbox:@build"
"""The service of managers that build images of Dockerfiles. No image has its name."""

SCORE_PLACEHOLDER: Final = "{score}"
"""In the command of a script reward: becomes the path of the file with the score."""

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of one message between a client and the scheduler."""

MAX_SPEC_BYTES: Final = 2 * 1024 * 1024
"""The most bytes of one action as it is kept."""

MAX_INLINE_BYTES: Final = 64 * 1024
"""The most bytes of one inline blob."""

MAX_INLINE_RESULT: Final = 4096
"""The most inline bytes of the payload of a finished trajectory."""

MAX_BATCH: Final = 2048
"""The most finished trajectories in one batch."""

MAX_ID: Final = 256
"""The most characters of an id, and of other short texts."""

MAX_COMMAND_BYTES: Final = 1 << 20
"""The most bytes of a program, its arguments and its variables: no kernel takes more."""

MAX_TEXT: Final = 1 << 20
"""The most characters of a text to be scored."""

MAX_DOWNLOADS: Final = 32
"""The most files that one env_step returns."""

LONGEST_PATH: Final = 4096
"""The most bytes of a path in a sandbox."""

LONGEST_COMPONENT: Final = 255
"""The most bytes between two slashes of such a path."""

MAX_STOP_TEXTS: Final = 64
"""The most texts that end one generation."""

MAX_STOP_CHARACTERS: Final = 1024
"""The most characters of such a text."""

BEGIN_TOKEN: Final = 256
"""Begins a conversation, in the vocabulary of bytes that an engine of `callsheet up` and the gateway share."""

END_OF_TURN_TOKEN: Final = 257
"""Ends a speaker's text in that vocabulary; the usual stop token."""

VOCABULARY_SIZE: Final = 259
"""The size of that vocabulary: the bytes, the two markers above, and one token that fills up batches."""
