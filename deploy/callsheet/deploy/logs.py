"""Where logs go and what they look like, for every process that the command starts."""

from __future__ import annotations

import logging
import sys

import structlog
from callsheet.options.common import LogFormat, LogLevel


def configure_logs(log_format: LogFormat | None, level: LogLevel, **context: str) -> None:
    """Sends structlog and the standard library's logging to standard error, one line an event.

    Args:
        log_format: None chooses console on a terminal, else JSON.
        level: The least important lines to keep.
        context: Added to every line of this process, for instance the role.
    """
    chosen = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    threshold = logging.getLevelNamesMapping()[level.value.upper()]
    structlog.configure(
        processors=[*shared, *_renderers(chosen)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_foreign(chosen)))
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)


def _renderers(log_format: LogFormat) -> list[structlog.typing.Processor]:
    if log_format is LogFormat.CONSOLE:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _foreign(log_format: LogFormat) -> list[structlog.typing.Processor]:
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(log_format)]
