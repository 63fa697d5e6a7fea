"""Why a record is none, the policy on bad records, and the account of all that was not stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import BinaryIO

from attnres_train.errors import Refused, refuse

MOST_LISTED = 1000
"""Bad records listed one by one in a report; of more, only the number is kept."""
KEY_MISSING = "key missing"
"""The kind of a record, or a whole file of rows, that has no text under the key asked for."""
UNREADABLE = "unreadable"
"""The kind of a file that is damaged."""


class Unreadable(Exception):
    """Why the record at hand, or its file from there on, cannot be read; `kind` in a word or two, to count by.

    `of_file` where that is so from the file's first record on, or is told once for all of it; `records` says how many
    are known to be lost with it.
    """

    def __init__(self, kind: str, reason: str, *, of_file: bool = False, records: int = 1):
        super().__init__(reason)
        self.kind = kind
        self.of_file = of_file
        self.records = records


@dataclass(frozen=True)
class SkippedRecord:
    """Where a record could not be read, and why; `line` (or row) counts from 1, None for a whole file.

    With a whole file `records` of them may be lost.
    """

    file: str
    line: int | None
    kind: str
    reason: str
    records: int = 1

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class BadRecords:
    """Applies the policy: `stop` refuses the first; `skip` allows any number, or `max_bad`, and counts them.

    What is no fault and yet gives no document is told too: the places of the first blank ones, and `empty_files`.

    `open_listing`, where given, is called at the first one; the file gets every one as a line of JSON.
    """

    def __init__(self, policy: str, max_bad: int | None, open_listing: Callable[[], BinaryIO] | None = None):
        self.policy = policy
        self.max_bad = max_bad
        self._open_listing = open_listing
        self._listing: BinaryIO | None = None
        self.by_kind: Counter[str] = Counter()
        self.listed: list[SkippedRecord] = []
        self.blank_documents = 0
        self.blank: list[tuple[str, int]] = []
        self.empty_files: list[str] = []

    @property
    def total(self) -> int:
        return self.by_kind.total()

    @property
    def most_allowed(self) -> int | None:
        """How many bad records do not end the work; None for any number."""
        return 0 if self.policy == "stop" else self.max_bad

    def add(self, bad: SkippedRecord) -> None:
        """Count one more bad record, or what is lost with a file, in the order of the input.

        Raises Refused as the policy says.
        """
        self.by_kind[bad.kind] += bad.records
        if self.most_allowed is not None and self.total > self.most_allowed:
            raise self._refuse(bad)
        if len(self.listed) < MOST_LISTED:
            self.listed.append(bad)
        if self._listing is None and self._open_listing is not None:
            self._listing = self._open_listing()
        if self._listing is not None:
            self._listing.write(json.dumps(asdict(bad)).encode() + b"\n")

    def add_blank(self, file: str, line: int) -> None:
        """Note where a document without text is: line or row from 1."""
        if len(self.blank) < MOST_LISTED:
            self.blank.append((file, line))

    def nothing(self, inputs: Sequence[str]) -> Refused:
        """That none of `inputs` gave a document, and what they hold instead: blank ones, bad ones, nothing at all."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.by_kind.most_common())
        what = f"no document with text: {self.blank_documents} blank, {self.total} bad" + (
            f" ({kinds})" if kinds else ""
        )
        if self.empty_files:
            what += f", files that are empty: {len(self.empty_files)}"
        return refuse(", ".join(inputs), what, "check --text-key and the files")

    def _refuse(self, bad: SkippedRecord) -> Refused:
        if self.policy == "stop":
            remedy = "mend the record, or pass --bad-records skip"
            key_remedy = f"name the key with --text-key, {remedy}"
            return refuse(bad.place, bad.reason, key_remedy if bad.kind == KEY_MISSING else remedy)
        what = f"{bad.reason}; this is bad record {self.total}, --max-bad allows {self.max_bad}"
        return refuse(bad.place, what, "mend the records, or raise --max-bad")

    def report(self) -> dict[str, object]:
        """For a report: how many, by reason, and the first of them one by one."""
        return {
            "skipped_records": self.total,
            "skipped_by_reason": [{"reason": kind, "records": count} for kind, count in self.by_kind.most_common()],
            "skipped": [asdict(bad) for bad in self.listed],
            "blank": [{"file": file, "line": line} for file, line in self.blank],
            "empty_files": self.empty_files,
        }
