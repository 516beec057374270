"""Where published weights may lie, and that nothing is learnt of what lies elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from callsheet.managers.inference import weight_places
from callsheet.managers.inference.driver import WeightUpdateError
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.weight_places import WeightPlaces
from callsheet.managers.inference.weights import DiskWeights, FirstWeights, GroupWeights, TensorWeights
from callsheet.options.declaration import from_values


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A place with a set of weights in it, beside another directory."""
    for name in ("shared/step-1", "private"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "weights.pt").write_text("weights")
    return tmp_path / "shared"


def read_from(shared: Path, location: str | Path, *more: str) -> str:
    bound = WeightPlaces([str(shared), *more]).bound(DiskWeights(str(location)))
    assert isinstance(bound, DiskWeights)
    return bound.location


def refusal(shared: Path, location: str | Path) -> str:
    with pytest.raises(WeightUpdateError) as caught:
        read_from(shared, location)
    assert caught.value.intact
    return str(caught.value).replace(repr(str(location)), "LOCATION").replace(f"{location}: ", "LOCATION: ")


def test_what_lies_in_a_place_is_read_by_a_path_without_links(shared: Path) -> None:
    (shared / "latest").symlink_to("step-1")
    (shared / "step-1" / "model.safetensors").symlink_to("weights.pt")
    for location in (shared / "step-1", f"file://{shared}/step-1", shared / "latest", f"{shared}//step-1/."):
        assert read_from(shared, location) == str(shared / "step-1")
    assert read_from(shared, shared / "step-9") == str(shared / "step-9"), "servers may see what is not here"
    assert read_from(shared, shared / "step-1" / "weights.pt") == str(shared / "step-1" / "weights.pt")


def test_a_place_may_be_a_link_itself(shared: Path) -> None:
    place = shared.parent / "place"
    place.symlink_to(shared)
    assert read_from(place, place / "step-1") == str(shared / "step-1")


def test_nothing_else_is_read_and_all_of_it_is_refused_alike(shared: Path) -> None:
    (shared / "out").symlink_to(shared.parent / "private")
    (shared / "nowhere").symlink_to("/does/not/exist")
    (shared / "circle").symlink_to("circle")
    (shared / "behind").symlink_to("missing/../circle")
    os.mkfifo(shared / "pipe")
    outside: list[str | Path] = [
        "/etc",
        "/etc/shadow",
        "/does/not/exist",
        "/proc/self/root",
        "/dev/stdin",
        shared.parent / "private",
        shared.parent,
        f"{shared}-more",
        f"{shared}/../private",
        f"{shared}/step-1/../../private",
        shared / "out",
        shared / "out" / "weights.pt",
        shared / "out" / "missing",
        shared / "nowhere",
        shared / "circle",
        shared / "circle" / "weights.pt",
        shared / "behind",
        shared / "pipe",
        f"file://{shared.parent}/private",
        f"file://localhost{shared}/step-1",
        "shared/step-1",
        ".",
        "org/model",
        "s3://bucket/model",
        "http://127.0.0.1:7077/",
    ]
    assert len({refusal(shared, location) for location in outside}) == 1
    assert "--weights-below" in refusal(shared, "/etc")


def link_out(directory: Path) -> None:
    (directory / "bad").symlink_to("/etc/hostname")


def link_to_nothing(directory: Path) -> None:
    (directory / "bad").symlink_to("/does/not/exist")


def link_to_a_directory(directory: Path) -> None:
    (directory / "bad").symlink_to(directory.parent)


def pipe(directory: Path) -> None:
    os.mkfifo(directory / "bad")


def link_to_a_pipe(directory: Path) -> None:
    os.mkfifo(directory.parent / "pipe")
    (directory / "bad").symlink_to(directory.parent / "pipe")


def far_below(directory: Path) -> None:
    (directory / "a" / "b").mkdir(parents=True)
    link_out(directory / "a" / "b")


@pytest.mark.parametrize("make", [link_out, link_to_nothing, link_to_a_directory, pipe, link_to_a_pipe, far_below])
def test_all_that_lies_there_are_files(shared: Path, make: Callable[[Path], None]) -> None:
    make(shared / "step-1")
    expected = "LOCATION: 'bad' is no plain file, or a link to a directory or out of the places"
    assert refusal(shared, shared / "step-1").startswith(expected)


def test_very_many_files_are_not_looked_at(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_places, "MAX_ENTRIES", 3)
    for number in range(3):
        (shared / "step-1" / f"{number}").write_text("")
    assert refusal(shared, shared / "step-1") == "LOCATION: must hold at most 3 files"


def test_places_may_be_uris(shared: Path) -> None:
    runs = "s3://bucket/runs/"
    for location in ("s3://bucket/runs", "s3://bucket/runs/7", "s3://bucket/runs/a/b"):
        assert read_from(shared, location, runs) == location
    for location in (
        "s3://bucket/runs-of-others",
        "s3://bucket/runs/../secrets",
        "s3://bucket/runs/%2e%2e/secrets",
        "s3://bucket/runs/7?versionId=1",
        "s3://bucket",
        "gs://bucket/runs/7",
    ):
        with pytest.raises(WeightUpdateError, match="must lie below"):
            read_from(shared, location, runs)


def test_groups_meet_at_named_addresses_alone() -> None:
    def group(address: str, port: int = 29_500) -> GroupWeights:
        return GroupWeights(address, port, "g", 2, 1, "gloo", ())

    places = WeightPlaces(["tcp://trainer.example", "tcp://10.0.0.7:29500", "tcp://fe80"])
    for good in (group("trainer.example", 1), group("10.0.0.7")):
        assert places.bound(good) is good
    for bad in (group("trainer.example.org"), group("10.0.0.7", 22), group("169.254.169.254", 80), group("fe80::1")):
        with pytest.raises(WeightUpdateError, match="location 'tcp://"):
            places.bound(bad)


def test_tensors_and_the_first_weights_lie_nowhere() -> None:
    places = WeightPlaces([])
    for source in (TensorWeights(Path("/tmp/x")), FirstWeights()):
        assert places.bound(source) is source
    with pytest.raises(WeightUpdateError, match="may lie nowhere"):
        places.bound(DiskWeights("/etc"))


@pytest.mark.parametrize("place", ["weights", "", "s3://", "file:///weights", "/weights/../etc", "://x", "a b://c"])
def test_places_that_are_none_are_refused(place: str) -> None:
    with pytest.raises(ValueError, match="weights_below: "):
        from_values(InferenceSettings, {"weights_below": [place]})
    good = ("/", "/runs/of..mine", "/50%/user@host", "s3://bucket/runs", "tcp://10.0.0.7:29500")
    assert InferenceSettings(weights_below=good).weights_below == good
