"""Runs one of our jobs on a reference engine: `reference.py ENGINE JOB INPUT VIEWS OUT SPILL THREADS`.

Reads the Parquet files INPUT (a pattern), writes Parquet to the folder OUT, and prints the seconds from a ready
engine until the last file is written, the peak memory of the process and its children in bytes, and the engine's version."""

import json
import os
import sys
import time
from pathlib import Path

# Jobs that share a method, or whose name is not a Python identifier.
METHODS = {"peer-plays": "plays", "peer-boards": "peer_boards"}


def peak_bytes() -> int:
    """Returns the sum of the peak memory of this process and its children. Some engines work in a child process."""
    processes = [os.getpid()]
    for process in processes:
        for task in Path(f"/proc/{process}/task").iterdir():
            processes.extend(int(child) for child in (task / "children").read_text().split())
    peak = 0
    for process in processes:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                peak += int(line.split()[1]) * 1024
    return peak


def engine(name: str, threads: int, spill: Path):
    """Starts an engine; returns it and its version."""
    if name in ("duckdb", "duckdb-sorted"):
        import duck

        return duck.Engine(threads, spill, is_sorted=name.endswith("-sorted")), duck.VERSION
    if name == "polars":
        # Polars reads these variables when it is imported.
        os.environ["POLARS_MAX_THREADS"] = str(threads)
        os.environ["POLARS_TEMP_DIR"] = str(spill)
        import polar

        return polar.Engine(), polar.VERSION
    if name == "pyspark":
        import spark

        return spark.Engine(threads, spill), spark.VERSION
    raise SystemExit(f"unknown engine {name}; use duckdb, duckdb-sorted, polars or pyspark")


def main(name: str, job: str, files: str, views: str, out: str, spill: str, threads: str) -> None:
    instance, version = engine(name, int(threads), Path(spill))
    started = time.monotonic()
    getattr(instance, METHODS.get(job, job))(files, Path(views), Path(out))
    seconds = time.monotonic() - started
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "version": version}), flush=True)
    instance.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
