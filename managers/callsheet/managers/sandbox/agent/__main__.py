"""Starts the agent, or the program that unpacks archives for it."""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType


class CompiledModules:
    """Gives modules from one file, which a sandbox gets sooner than a file for each, and with less memory."""

    def __init__(self, directory: str) -> None:
        """Reads what `agent_client/program.py` made with the same Python."""
        self.places = [directory]
        with open(os.path.join(directory, "bundle"), "rb") as file:
            self.codes: dict[str, CodeType] = marshal.load(file)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns how a module is loaded that is in the file."""
        if name not in self.codes:
            return None
        spec = type(os.__spec__)(name, self, is_package="." not in name)  # type: ignore[arg-type]
        if "." not in name:
            spec.submodule_search_locations = self.places
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves that to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Loads it, once."""
        exec(self.codes.pop(module.__name__), module.__dict__)


if not __package__:
    # Run as a file: the package is found beside the directory that it is in.
    directory = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(os.path.dirname(directory))
    __package__ = os.path.basename(directory)
    if os.path.exists(os.path.join(directory, "bundle")):
        sys.meta_path.insert(0, CompiledModules(directory))

if sys.argv[1] == "unpack":
    from .archives import main
else:
    from .loop import main

main()
