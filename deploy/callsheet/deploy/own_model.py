"""The user's own model, told before a stack starts. Loads nothing heavy."""

from __future__ import annotations

from callsheet.deploy.roles import Role
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.settings import DEFAULT_SERVICE


def describe_own_model(settings: StackSettings) -> str | None:
    """Returns what will be served, in a line for people; None where no directory is given.

    Raises:
        ValueError: The directory does not hold a model.
    """
    directory, script = settings.inference.model_directory, settings.inference.script
    if directory is None or Role.INFERENCE not in settings.managers:
        return None
    if script is not None:
        return f"the service {DEFAULT_SERVICE} answers by {script} with the tokens of {directory}"
    from callsheet.managers.inference.torch_engine.settings import Dtype, served_dtype
    from callsheet.managers.models.config_file import WeightsError
    from callsheet.managers.models.hf_directory import read_model_directory

    try:
        described = read_model_directory(directory)
    except WeightsError as error:
        raise ValueError(f"model: {error}") from error
    summary = described.summary(served_dtype(Dtype.AUTO, "cpu", described.dtype))
    return f"the service {DEFAULT_SERVICE} is {summary}"
