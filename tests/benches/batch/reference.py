"""Runs one of our jobs on a reference engine: `reference.py ENGINE JOB INPUT VIEWS OUT SPILL THREADS`.

Reads the Parquet files INPUT (a pattern), writes Parquet to the folder OUT, and prints seconds (from an engine that stands ready until
the last file is written), the most memory that the process and its children held, in bytes, and the engine's version."""

import json
import os
import sys
import time
from pathlib import Path

# Where a job is another one over other views, or a name that Python can't have.
METHODS = {"peer-plays": "plays", "peer-boards": "peer_boards"}


def peak_bytes() -> int:
    """The most memory that this process held, and each child: where an engine is another process, that one works."""
    processes = [os.getpid()]
    for one in processes:
        for task in Path(f"/proc/{one}/task").iterdir():
            processes.extend(int(child) for child in (task / "children").read_text().split())
    held = 0
    for one in processes:
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                held += int(line.split()[1]) * 1024
    return held


def engine(name: str, threads: int, spill: Path):
    """An engine that stands ready, and its version."""
    if name in ("duckdb", "duckdb-sorted"):
        import duck

        return duck.Engine(threads, spill, is_sorted=name.endswith("-sorted")), duck.VERSION
    if name == "polars":
        # Read when the library is loaded.
        os.environ["POLARS_MAX_THREADS"] = str(threads)
        os.environ["POLARS_TEMP_DIR"] = str(spill)
        import polar

        return polar.Engine(), polar.VERSION
    if name == "pyspark":
        import spark

        return spark.Engine(threads, spill), spark.VERSION
    raise SystemExit(f"there are duckdb, duckdb-sorted, polars and pyspark, not {name}")


def main(name: str, job: str, files: str, views: str, out: str, spill: str, threads: str) -> None:
    ready, version = engine(name, int(threads), Path(spill))
    begun = time.monotonic()
    getattr(ready, METHODS.get(job, job))(files, Path(views), Path(out))
    seconds = time.monotonic() - begun
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "version": version}), flush=True)
    ready.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
