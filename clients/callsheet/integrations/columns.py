"""Names of the columns and fields that adapters of trainers add to a sample."""

from __future__ import annotations

from typing import Final

CUT_REPLIES: Final = "callsheet_cut_replies"
EXCLUDED: Final = "callsheet_excluded"
FAILED: Final = "callsheet_failed"
FAILURE: Final = "callsheet_failure"
LEFT_OUT: Final = "callsheet_left_out_tokens"
REPLACED: Final = "callsheet_replaced"
SCORE: Final = "callsheet_score"
TRAJECTORY: Final = "callsheet_trajectory"
TURNS: Final = "callsheet_turns"
VERSIONS: Final = "callsheet_versions"
