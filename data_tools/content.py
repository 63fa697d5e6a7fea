"""What a file is by its first bytes, where that is not what its name says."""

from __future__ import annotations

from pathlib import Path

from attnres_train.tokenizer.file_kinds import what_it_is
from data_tools.bad_records import Unreadable
from data_tools.inputs import compression_of, ending_of, kind_of

LOOKED_AT = 4096
"""Bytes of a file that are looked at."""
LARGEST_POINTER = 1024

COMPRESSED: dict[str, tuple[bytes, ...]] = {
    ".gz": (b"\x1f\x8b",),
    # A frame that is skipped may come first, as pzstd writes one.
    ".zst": (b"\x28\xb5\x2f\xfd", *(bytes((0x50 + i, 0x2A, 0x4D, 0x18)) for i in range(16))),
    ".bz2": (b"BZh",),
    ".xz": (b"\xfd7zXZ\0", b"]\0\0"),
}
"""How each compression begins."""
LONGEST_START = 6
"""Bytes of the longest of these."""
PARQUET = (b"PAR1", b"PARE")
ARCHIVES = (
    (b"\x1f\x8b\x08", ".gz"),
    (b"\x28\xb5\x2f\xfd", ".zst"),
    (b"\xfd7zXZ\0", ".xz"),
    *((b"BZh%d1AY&SY" % level, ".bz2") for level in range(1, 10)),
    # A page, or the file's own facts, follow; a text may begin with these four letters.
    (b"PAR1\x15", ".parquet"),
)
"""How the archives begin that a text is never taken for, and the ending that each is read under."""
OTHERS = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x04\x22\x4d\x18", "an lz4 archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\xff\x06\0\0sNaPpY", "a snappy archive"),
    (b"ARROW1\0\0", "an Arrow file"),
    (b"Obj\x01", "an Avro file"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"%PDF-", "a PDF document"),
)
"""Files that are not read under any name."""
MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order marks of what is not UTF-8. Longer ones first: one begins as another."""


def check_file(path: Path, head: bytes) -> None:
    """Raises Unreadable where a file that begins with `head` is not compressed as its name says, or is a pointer."""
    head = head[:LOOKED_AT]
    if len(head) < LARGEST_POINTER:
        _check_pointer(head)
    compression = compression_of(path)
    if compression and not head.startswith(COMPRESSED[compression]):
        raise _wrong(path, head, f"not compressed as {compression} says")


def check_inside(path: Path, head: bytes) -> None:
    """Raises Unreadable where `head`, which the file holds when it is decompressed, is of another kind than named."""
    head = head[:LOOKED_AT]
    kind = kind_of(path)
    inner = compression_of(path)
    if kind == ".parquet":
        if head and not head.startswith(PARQUET):
            raise _wrong(path, head, "no Parquet file", inner)
        return
    if _archive(head) or _other(head):
        raise _wrong(path, head, "no text", inner)
    if kind == ".jsonl":
        # One bad file, not as many bad records as it has line breaks. A `.txt` file may well hold a page.
        if mark := next((name for start, name in MARKS.items() if head.startswith(start)), None):
            raise Unreadable("not UTF-8", not_utf8_but(mark), of_file=True)
        if head.lstrip()[:1] == b"<":
            raise _wrong(path, head, "no lines of JSON", inner)


def not_utf8_but(encoding: str) -> str:
    """Why a text with the byte order mark of `encoding` is none, and what to do."""
    return f"not UTF-8 but {encoding}, by its byte order mark: convert it, say with `iconv -f {encoding} -t UTF-8`"


def _check_pointer(head: bytes) -> None:
    if head.startswith(b"version http") and b"\noid " in head and b"\nsize " in head:
        size = head.split(b"\nsize ", 1)[1].split()[0].decode(errors="replace")
        what = f"is a Git LFS pointer, not the file of {size} bytes that it stands for: get that with `git lfs pull`"
        raise Unreadable("pointer", what, of_file=True)
    if head.startswith(b"/annex/objects/"):
        what = "is a git-annex pointer, not the file it stands for: get that with `git annex get`"
        raise Unreadable("pointer", what, of_file=True)


def _archive(head: bytes) -> str | None:
    """The ending under which a file that begins with `head` is read; None for text and what is not known."""
    return next((ending for start, ending in ARCHIVES if head.startswith(start)), None)


def _other(head: bytes) -> str | None:
    """In words, a file of a known kind that is not read under any name."""
    if head[257:262] == b"ustar":
        return "a tar archive"
    return next((words for start, words in OTHERS if head.startswith(start)), None)


def _wrong(path: Path, head: bytes, but: str, inside: str = "") -> Unreadable:
    """That the file is `but`: what it seems to be, within a compression `inside`, and its right name or a remedy."""
    return Unreadable("not what its name says", _wrong_words(path, head, but, inside), of_file=True)


def _wrong_words(path: Path, head: bytes, but: str, inside: str) -> str:
    but = f"inside, {but}" if inside else but
    if words := _other(head):
        return f"is {words}, {but}: unpack or convert it"
    words = what_it_is(head)
    if (ending := _archive(head)) is None:
        ending = _text_ending(path, head)
    if ending is None:
        return f"is {but}: it begins with the bytes {head[:8].hex(' ')}; make it again"
    if words.startswith(("HTML", "a Git LFS")):
        return f"is {words}, {but}: get it again"
    words = {".jsonl": "plain text, a JSON object a line,", ".txt": "plain text,"}.get(ending, f"{words},")
    if inside and ending in COMPRESSED:
        return f"is {words} {but}: it was compressed twice; unpack it once"
    own = ending_of(path)
    stem = path.name.removesuffix(compression_of(path)).removesuffix(own)
    name = stem + (own + ending if ending in COMPRESSED else ending + inside)
    return f"is {words} {but}: name it {name}"


def _text_ending(path: Path, head: bytes) -> str | None:
    """The ending of plain text that begins with `head`; None where it is no text."""
    # The last character may be cut.
    if not head or 0 in head or "\ufffd" in head.decode(errors="replace")[:-1]:
        return None
    if kind_of(path) != ".parquet":
        return kind_of(path)
    return ".jsonl" if head.lstrip()[:1] == b"{" else ".txt"
