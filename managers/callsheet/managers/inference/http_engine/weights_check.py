"""Looks at weights on disk before a server is told to read them: servers die of torn files, in the middle of a model.

Only headers are read. A directory that this machine does not see is for the server alone to judge.
"""

from __future__ import annotations

from pathlib import Path

from callsheet.managers.inference.driver import WeightUpdateError
from callsheet.managers.models.config_file import WeightsError
from callsheet.managers.models.safetensors_files import StoredTensor, TensorsFile, read_tensor_files

Shapes = dict[str, tuple[int, ...]]
_NARROW = frozenset({"BF16", "F16"})


def check_weights(location: str, served: str) -> None:
    """Refuses weights that a server could not use; blocks on files.

    Args:
        location: Directory of the new weights.
        served: Directory of the weights that it serves now; what cannot be read from here is not compared.

    Raises:
        WeightUpdateError: A file is torn or missing, or tensors have other names or shapes than those it serves.
    """
    directory = Path(location)
    if not directory.is_dir():
        if directory.is_absolute() and Path(served).is_dir():
            # What the server serves can be seen from here, so its file system is this one.
            raise WeightUpdateError(f"{location}: there is no such directory", intact=True)
        return
    try:
        shapes = _shapes_in(directory)
    except WeightsError as error:
        raise WeightUpdateError(str(error), intact=True) from error
    try:
        known = _shapes_in(Path(served)) if Path(served).is_dir() else {}
    except WeightsError:
        known = {}  # Those that are served may have been replaced on disk.
    if shapes and known and shapes != known:
        names = sorted(name for name in shapes.keys() | known.keys() if shapes.get(name) != known.get(name))
        message = f"{location}: {names[0]} and {len(names) - 1} more tensors are not those of the running model"
        raise WeightUpdateError(message, intact=True)


def differing_tensor(location: str, served: str) -> str:
    """Names a tensor that differs between two directories; blocks on files.

    Numbers of 16 bits are compared alone: a server may round wider ones to the same.

    Returns:
        Its name; empty if there is none, or the files cannot be read from here.
    """
    try:
        new, old = _stored_in(Path(location)), _stored_in(Path(served))
        named = (name for name in sorted(new.keys() & old.keys()) if new[name][1].dtype in _NARROW)
        return next((name for name in named if _bytes_of(*new[name]) != _bytes_of(*old[name])), "")
    except (OSError, WeightsError):
        return ""


def _stored_in(directory: Path) -> dict[str, tuple[TensorsFile, StoredTensor]]:
    return {name: (file, tensor) for file in read_tensor_files(directory) for name, tensor in file.tensors.items()}


def _bytes_of(file: TensorsFile, tensor: StoredTensor) -> bytes:
    with file.path.open("rb") as opened:
        opened.seek(file.begin + tensor.begin)
        return opened.read(tensor.end - tensor.begin)


def _shapes_in(directory: Path) -> Shapes:
    """Shapes of all tensors in a directory; none where it has no file of safetensors."""
    if not any(directory.glob("*.safetensors*")):
        return {}
    return {name: tensor.shape for name, (_, tensor) in _stored_in(directory).items()}
