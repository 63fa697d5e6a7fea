"""That the metadata of a checkpoint are read without running what is in them, and that all of ours are read."""

from __future__ import annotations

import io
import operator
import os
import pickle
import struct
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path, PosixPath
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from attnres_train.checkpoint.checksum import record_of
from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import Manifest, read_manifest, write_manifest
from attnres_train.checkpoint.metadata import METADATA_FILE, ForeignType, read_metadata
from attnres_train.checkpoint.pieces import PieceFiles
from attnres_train.checkpoint.random_state import random_streams, read_random_state
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.errors import Refused
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny


class Calls:
    """Pickles as the result of calling `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def metadata_with(guest: Any) -> Metadata:
    """Sound metadata but for `guest` among the planner's data."""
    return Metadata(state_dict_metadata={}, planner_data={"x": guest}, storage_data={})


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"\x8c" + bytes([len(encoded)]) + encoded


def stack_global(module: str, name: str) -> bytes:
    """Protocol 4's way to name a type, which would look a dotted name up part by part."""
    return b"\x80\x04" + text(module) + text(name) + b"\x93."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    return tmp_path / "checkpoint"


@pytest.mark.parametrize(
    ("wrap", "protocol"),
    [
        *((lambda guest: guest, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
        *((metadata_with, protocol) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
    ],
)
def test_a_command_in_the_metadata_is_refused_by_name_and_not_run(
    wrap: Callable[[Any], Any], protocol: int, folder: Path
) -> None:
    marker = folder / "ran"
    (folder / METADATA_FILE).write_bytes(pickle.dumps(wrap(Calls(os.system, f"touch {marker}")), protocol))
    with pytest.raises(ForeignType, match=r"the foreign type posix\.system"):
        read_metadata(folder)
    assert not marker.exists()
    pickle.loads((folder / METADATA_FILE).read_bytes())
    assert marker.exists(), "this test's pickle does nothing"


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_a_path_is_read_whichever_python_wrote_it(module: str, folder: Path) -> None:
    """3.13 alone says that paths are of `pathlib._local`."""
    written = pickle.dumps(metadata_with(Path("a/b")), protocol=3)
    named = f"c{PosixPath.__module__}\nPosixPath\n".encode()
    assert named in written
    (folder / METADATA_FILE).write_bytes(written.replace(named, f"c{module}\nPosixPath\n".encode()))
    assert read_metadata(folder).planner_data == {"x": Path("a/b")}


_LOAD_FROM_BYTES = torch.storage._load_from_bytes


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (eval, ("1",), "builtins.eval"),
        (exec, ("1",), "builtins.exec"),
        (getattr, (1, "real"), "builtins.getattr"),
        (setattr, (Metadata, "a", 1), "builtins.setattr"),
        (__import__, ("os",), "builtins.__import__"),
        (operator.attrgetter("real"), (), "operator.attrgetter"),
        (torch.load, ("x",), "torch.serialization.load"),
        # megatron-core 0.19 puts a function of its own in its place, which is no better known.
        (_LOAD_FROM_BYTES, (b"",), f"{_LOAD_FROM_BYTES.__module__}.{_LOAD_FROM_BYTES.__qualname__}"),
        (pickle.loads, (b"",), "_pickle.loads"),
        (dict, (), "builtins.dict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_other_callable_is_known(
    function: Callable[..., Any], arguments: tuple[Any, ...], name: str, folder: Path
) -> None:
    (folder / METADATA_FILE).write_bytes(pickle.dumps(metadata_with(Calls(function, *arguments))))
    with pytest.raises(ForeignType, match=f"^the foreign type {name}$"):
        read_metadata(folder)


@pytest.mark.parametrize(
    "code",
    [
        stack_global("torch", "serialization.os.system"),
        stack_global("torch", "Size.__class__"),
        stack_global("torch.distributed.checkpoint.metadata", "os"),
        stack_global("torch.distributed.checkpoint.metadata", "Metadata.__init__.__globals__"),
        stack_global("pathlib", "os.system"),
        stack_global("torch.serialization", "os"),
        stack_global("", ""),
        b"(S'true'\nios\nsystem\n.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"c__main__\nos\n.",
    ],
    ids=repr,
)
def test_dotted_names_and_old_opcodes_reach_nothing_else(code: bytes, folder: Path) -> None:
    (folder / METADATA_FILE).write_bytes(code)
    with pytest.raises(ForeignType, match="the foreign type"):
        read_metadata(folder)


@pytest.mark.parametrize("code", [b"Pabc\n.", b"\x80\x04K\x01Q.", b"\x80\x05\x97.", b"\x82\xf0.", b"", b"\x80\xff."])
def test_persistent_ids_buffers_and_extensions_are_refused(code: bytes, folder: Path) -> None:
    (folder / METADATA_FILE).write_bytes(code)
    with pytest.raises((pickle.UnpicklingError, EOFError, ValueError)):
        read_metadata(folder)


@pytest.mark.parametrize("value", [None, {}, [1], "text", torch.Size([1]), Metadata], ids=repr)
def test_what_is_no_metadata_is_refused(value: Any, folder: Path) -> None:
    (folder / METADATA_FILE).write_bytes(pickle.dumps(value))
    with pytest.raises(ForeignType, match=f"a {type(value).__name__} in the place of the metadata"):
        read_metadata(folder)
    (folder / METADATA_FILE).unlink()
    with pytest.raises(FileNotFoundError):
        read_metadata(folder)


def test_reading_changes_no_type(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pathlib.Path`, then BUILD with the slots {"planted": "by a file"}."""
    monkeypatch.setattr(Path, "planted", "", raising=False)
    (folder / METADATA_FILE).write_bytes(b"cpathlib\nPath\n(N}" + text("planted") + text("by a file") + b"stb.")
    with pytest.raises(pickle.UnpicklingError):
        read_metadata(folder)
    assert Path.planted == ""  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_writes_is_read_as_torch_reads_it(folder: Path) -> None:
    tensors = {"a": torch.ones(3), "empty": torch.zeros(0), "deep": {"b": torch.zeros(2, 2)}, "scalar": torch.zeros(())}
    dcp.save({**tensors, "number": 5}, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    found = read_metadata(folder)
    assert found == pickle.loads((folder / METADATA_FILE).read_bytes())
    assert found.state_dict_metadata.keys() == {"a", "empty", "deep.b", "scalar", "number"}

    files = PieceFiles(folder, [path.name for path in folder.iterdir()])
    with closing(files):
        for name, value in {"deep.b": torch.zeros(2, 2), **tensors}.items():
            if isinstance(value, torch.Tensor):
                (place,) = [where for index, where in found.storage_data.items() if index.fqn == name]
                into = torch.full_like(value, 7)
                begin = files.begin(place.relative_path, place.offset, place.length, value.shape)
                files.read(place.relative_path, begin, into.view(-1))
                assert into.equal(value), name


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of step 1, saved as a run saves it."""
    run = tmp_path_factory.mktemp("run")

    def save() -> None:
        config = tiny_config("block")
        grid = build_grid(config.parallel, seed=1)
        engine = build_tiny(config, grid).engine
        saved = CheckpointSave.start(run, engine, grid, TrainState(step=1), RunIdentity((4,), {}, {}))
        saved.wait()
        saved.publish()

    run_ranks(save, 1)
    return checkpoints_folder(run) / checkpoint_name(1)


def test_every_type_that_our_checkpoints_contain_is_known(ours: Path) -> None:
    """Fails where a newer torch or megatron-core describes tensors with types that the list lacks."""
    found = read_metadata(ours)
    assert found == pickle.loads((ours / METADATA_FILE).read_bytes())
    tensors = read_manifest(ours).tensors
    kinds = ("weight", "first_moment", "second_moment")
    assert found.state_dict_metadata.keys() == {f"{kind}/{name}" for kind in kinds for name in tensors}
    for name, tensor in tensors.items():
        stored = found.state_dict_metadata[f"weight/{name}"]
        assert (tuple(stored.size), stored.properties.dtype) == (tensor.shape, torch.float32)


def resealed(original: Path, folder: Path, changes: Mapping[str, bytes], unlisted: Collection[str] = ()) -> Path:
    """A copy of the checkpoint `original` with other files, in a manifest that vouches for all but `unlisted`."""
    for file in original.iterdir():
        (folder / file.name).write_bytes(changes.get(file.name, file.read_bytes()))
    stated = read_manifest(original)
    files = {name: record_of(folder / name) for name in stated.files if name not in unlisted}
    write_manifest(folder, Manifest(**{**vars(stated), "files": files}))
    return folder


def refused_load(folder: Path) -> str:
    """How loading the checkpoint in `folder` is refused."""

    def load() -> str:
        config = tiny_config("block")
        grid = build_grid(config.parallel, seed=1)
        with pytest.raises(Refused) as refusal:
            load_checkpoint(folder, read_manifest(folder), build_tiny(config, grid).engine, grid, {}, {})
        return str(refusal.value)

    return run_ranks(load, 1)[0]


def test_a_forged_checkpoint_is_refused_and_not_run(ours: Path, folder: Path) -> None:
    marker = folder / "ran"
    data = pickle.dumps(metadata_with(Calls(os.system, f"touch {marker}")))
    told = refused_load(resealed(ours, folder, {METADATA_FILE: data}))
    assert "its metadata hold the foreign type posix.system" in told and str(folder) in told
    assert not marker.exists()


NO_METADATA = {
    "text": b"not a pickle",
    "empty": b"",
    "cut": pickle.dumps(metadata_with(1))[:-20],
    "another protocol": b"\x80\x63.",
    "Size of text": b"ctorch\nSize\n" + text("abcd") + b"\x85R.",
}
NOT_CAUGHT = {
    "KeyError": b"ctorch.serialization\n_get_layout\n" + text("abcd") + b"\x85R.",
    "RuntimeError": b"ctorch\ndevice\n" + text("abcd") + b"\x85R.",
    "OverflowError": b"\x80\x04\x95" + struct.pack("<Q", 2**64 - 1) + b"N.",
}


@pytest.mark.parametrize(
    "data",
    [*NO_METADATA.values(), *(pytest.param(data) for data in NOT_CAUGHT.values())],
    ids=[*NO_METADATA, *NOT_CAUGHT],
)
def test_metadata_that_cannot_be_read_are_refused_whatever_is_wrong(data: bytes, ours: Path, folder: Path) -> None:
    assert "its metadata " in refused_load(resealed(ours, folder, {METADATA_FILE: data}))


def saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


RANDOM, STATES = "random-00000.pt", "__0_0.distcp"
CODE = Calls(os.system, "false")
NO_STREAM = torch.zeros_like(torch.get_rng_state())
FORGED: Mapping[str, tuple[str, bytes, str]] = {
    "random code": (RANDOM, saved({"torch": CODE}), f"{RANDOM} names the foreign type posix.system"),
    "random text": (RANDOM, b"hello", f"{RANDOM} cannot be read: "),
    "random list": (RANDOM, saved([1]), f"{RANDOM} holds no random streams"),
    "random nothing": (RANDOM, saved({}), f"{RANDOM} holds no random streams"),
    "random floats": (RANDOM, saved({"torch": torch.zeros(3)}), f"{RANDOM} holds a Tensor in the place of"),
    "random length": (RANDOM, saved({"torch": torch.zeros(3, dtype=torch.uint8)}), f"{RANDOM} holds 3 bytes of"),
    "random zeros": (RANDOM, saved({"torch": NO_STREAM}), f"{RANDOM} holds no random stream"),
    "common code": ("common.pt", saved(CODE), "common.pt names the foreign type posix.system"),
    "common more": ("common.pt", saved({"a": 1}), "common.pt holds a dict that no checkpoint of this version has"),
    "config other": ("metadata.json", b'{"sharded_backend": "zarr"}', "metadata.json is of another format: {'sharded"),
    "config text": ("metadata.json", b"no", "metadata.json cannot be read: "),
}  # fmt: skip


@pytest.mark.parametrize(("name", "data", "told"), FORGED.values(), ids=FORGED)
def test_a_forged_part_is_refused_by_file_and_type(name: str, data: bytes, told: str, ours: Path, folder: Path) -> None:
    refused = refused_load(resealed(ours, folder, {name: data}))
    assert told in refused and str(folder) in refused and "weights_only" not in refused


@pytest.mark.parametrize("name", [METADATA_FILE, RANDOM, STATES, "common.pt", "metadata.json"])
def test_a_file_that_the_manifest_does_not_name_is_not_read(name: str, ours: Path, folder: Path) -> None:
    refused = refused_load(resealed(ours, folder, {}, unlisted=[name]))
    assert name in refused and (
        "not among the files of the manifest" in refused or "no file of the checkpoint" in refused
    )


def test_a_pickle_among_the_states_is_refused_by_file_and_type(ours: Path, folder: Path) -> None:
    """In the place of the first tensor, with metadata that say so."""
    forged = saved(Calls(os.system, f"touch {folder / 'ran'}"))
    metadata = read_metadata(ours)
    for place in metadata.storage_data.values():
        place.offset, place.length = 0, len(forged)
    data = {STATES: forged, METADATA_FILE: pickle.dumps(metadata)}
    refused = refused_load(resealed(ours, folder, data))
    assert f"cannot be read: rank 0: {STATES} names the foreign type posix.system, and could run code" in refused
    assert "weights_only" not in refused and not (folder / "ran").exists()


def test_metadata_that_forget_a_piece_or_take_another_for_it_are_refused(ours: Path, folder: Path) -> None:
    key, other = "second_moment/layers.2.mlp.norm.weight", "weight/layers.1.mlp.branch.linear_fc2.weight"
    forgetting, exchanging = read_metadata(ours), read_metadata(ours)
    forgetting.state_dict_metadata[key].chunks.clear()
    refused = refused_load(resealed(ours, folder, {METADATA_FILE: pickle.dumps(forgetting)}))
    assert f"cannot be read: rank 0: lacks 32 elements of {key}" in refused
    places = {index.fqn: index for index in exchanging.storage_data}
    exchanging.storage_data[places[key]] = exchanging.storage_data[places[other]]
    refused = refused_load(resealed(ours, folder, {METADATA_FILE: pickle.dumps(exchanging)}))
    assert f"cannot be read: rank 0: {STATES} holds torch.float32 of shape (32, 48) in the place of" in refused


def test_metadata_do_not_lead_out_of_the_folder(ours: Path, folder: Path) -> None:
    """(unslothai/unsloth#6796)"""
    metadata = read_metadata(ours)
    for place in metadata.storage_data.values():
        place.relative_path = str(ours / place.relative_path)
    refused = refused_load(resealed(ours, folder, {METADATA_FILE: pickle.dumps(metadata)}))
    assert f"its metadata hold a part in '{ours / STATES}', which is no file of the checkpoint" in refused


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_streams_of_a_gpu_are_left_where_there_is_none(folder: Path) -> None:
    stream = torch.get_rng_state().clone()
    of_gpu = torch.zeros(16, dtype=torch.uint8)
    (folder / RANDOM).write_bytes(saved({"torch": stream, "cuda": of_gpu, "tracker/model-parallel-rng": of_gpu}))
    found = read_random_state(folder / RANDOM)
    assert found.keys() == random_streams().keys() and found["torch"].equal(stream)
