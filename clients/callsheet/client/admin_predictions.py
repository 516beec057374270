"""Predictions of the scheduler for an action, and for a larger pool. Times are in seconds."""

from __future__ import annotations

from callsheet.v1.admin_service_values import ClassOutlook, ExpectedRun, Outlook, SharedCores, WhatIf

__all__ = ["ClassOutlook", "ExpectedRun", "Outlook", "SharedCores", "WhatIf"]
