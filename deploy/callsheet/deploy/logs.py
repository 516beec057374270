"""Places and format of the logs of every process that the command starts."""

from __future__ import annotations

import logging
import sys
import traceback
from types import ModuleType
from typing import Any, Final, TextIO, cast

from callsheet.credentials.masking import without_credentials
from callsheet.deploy.terminal import visible, visible_line
from callsheet.options.common import LogFormat, LogLevel

# Where rich is installed structlog imports it for tracebacks that no log here has, and takes four times as long.
_KEPT_OUT: Final = sys.modules.setdefault("rich", cast("ModuleType", None)) is None
import structlog  # noqa: E402

if _KEPT_OUT:
    del sys.modules["rich"]


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


def _without_credentials(_logger: object, _method: str, line: Any) -> str:
    """Lines may hold errors of libraries, with the URLs that these were given."""
    return without_credentials(line)


def _renderers(log_format: LogFormat) -> list[structlog.typing.Processor]:
    if log_format is LogFormat.CONSOLE:
        # Not rich's tracebacks: they show the variables of each frame, and secrets with them.
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_plain_traceback)
        return [_for_terminal, renderer, _without_credentials]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(), _without_credentials]


def _foreign(log_format: LogFormat) -> list[structlog.typing.Processor]:
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(log_format)]


def _for_terminal(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Texts of others as a terminal may have them; what is no text is shown by its repr, which escapes."""
    return {name: visible_line(value) if isinstance(value, str) else value for name, value in event.items()}


def _plain_traceback(stream: TextIO, raised: structlog.typing.ExcInfo) -> None:
    stream.write("\n" + visible("".join(traceback.format_exception(*raised)).rstrip()))
