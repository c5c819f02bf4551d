#!/usr/bin/env python3
"""Create the subset of the test data from the full data set.

    tests/data/subset.py SOURCE [TARGET]

SOURCE and TARGET are folders with `flights` and `retail`. TARGET is the folder of this script by default.
README.md describes the files and the selection rules.
"""

import argparse
import gzip
import json
from pathlib import Path

# The queries of tests/tests/it/flights.rs need every effort of these segments.
COMPLETE_SEGMENTS = {1001, 1035, 1118, 1123, 1188}
# Must equal EFFORT_SAMPLE_INTERVAL in tests/src/records.rs.
EFFORT_SAMPLE_INTERVAL = 11
# Selects owners 1, 7, and 109, which the queries of tests/tests/it/retail.rs need.
OWNER_SAMPLE_INTERVAL = 3


def select_effort(effort):
    is_sampled = effort["activity_id"] % EFFORT_SAMPLE_INTERVAL == 0
    return is_sampled or effort["segment_id"] in COMPLETE_SEGMENTS


def select_play(play):
    return play["owner_id"] % OWNER_SAMPLE_INTERVAL == 1


def select_all(_):
    return True


FILES = {
    "flights/athletes.jsonl.gz": select_all,
    "flights/clubs.jsonl.gz": select_all,
    "flights/efforts.jsonl.gz": select_effort,
    "flights/follows.jsonl.gz": select_all,
    "retail/plays.jsonl.gz": select_play,
}


def write_subset(source, target, select):
    """Copy the selected lines unchanged and in order; return the numbers of lines read and written."""
    with gzip.open(source, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    selected = [line for line in lines if select(json.loads(line))]
    target.parent.mkdir(parents=True, exist_ok=True)
    # A fixed header without name and time keeps the output reproducible.
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as file,
    ):
        file.write(b"".join(selected))
    return len(lines), len(selected)


def main():
    parser = argparse.ArgumentParser(description="Create the subset of the test data from the full data set.")
    parser.add_argument("source", type=Path, help="folder of the full data set")
    parser.add_argument(
        "target", type=Path, nargs="?", default=Path(__file__).parent, help="output folder (default: tests/data)"
    )
    args = parser.parse_args()
    if args.source.resolve() == args.target.resolve():
        parser.error("SOURCE and TARGET must be different folders")
    if missing := [name for name in FILES if not (args.source / name).is_file()]:
        parser.error(f"{args.source} lacks {', '.join(missing)}")
    for name, select in FILES.items():
        read, written = write_subset(args.source / name, args.target / name, select)
        size_bytes = (args.target / name).stat().st_size
        print(f"{name}: {written} of {read} records, {size_bytes} bytes")


if __name__ == "__main__":
    main()
