"""Compares results row by row, in DuckDB: `compare.py JOB VIEWS EXPECTED FOUND SPILL`, both folders with a file (or a folder of files) for
each view. Prints how many rows are expected, how many of them are missing and how many others there are; ends with 1 if there are any.

Rows may stand in any order, and an integer may be of another type. Times are compared in microseconds."""

import json
import sys
from pathlib import Path

import duckdb
from views import tallies

PART_ROWS = 4_000_000
BOARDS = {
    "efforts": (
        "segment_boards",
        "segment_id, division, period, athlete_id, elapsed_time, effort_id, activity_id, epoch_us(started_at), gender, birth_year, "
        "weight_class, efforts",
    ),
    "peer-boards": ("peer_boards", "segment_id, division, period, athlete_id, elapsed_time, effort_id"),
    "authorizations": ("application_athletes", "application_id, athlete_id, authorizations"),
}


def views(job: str, folder: Path) -> list[tuple[str, str]]:
    """The views of a job, with the columns that are compared."""
    if job in BOARDS:
        return [BOARDS[job]]
    shown = lambda column: "epoch_us(bucket)" if column == "bucket" else column
    return [(view.name, ", ".join([*map(shown, view.keys), "count"])) for view in tallies(folder, "plays")]


def read(folder: Path, view: str, columns: str) -> str:
    """The rows of a view. All integers are compared as 64 bits."""
    files = folder / f"{view}.parquet"
    if files.is_dir():
        files = files / "*.parquet"
    texts = ("kind", "country", "referrer", "gender")
    cast = ", ".join(column if column in texts else f"({column})::BIGINT" for column in columns.split(", "))
    return f"SELECT {cast} FROM read_parquet('{files}')"


def main(job: str, folder: str, expected: str, found: str, spill: str) -> int:
    db = duckdb.connect()
    db.execute("SET threads = 2")
    db.execute("SET TimeZone = 'UTC'")
    db.execute("SET preserve_insertion_order = false")
    db.execute(f"SET temp_directory = '{spill}'")
    count = lambda query: db.execute(f"SELECT count(*) FROM ({query})").fetchone()[0]
    rows, missing, extra = 0, 0, 0
    for view, columns in views(job, Path(folder)):
        of_view = count(read(Path(expected), view, columns))
        lacks, has = 0, 0
        # Some keys at a time, so that little is held in memory.
        parts = of_view // PART_ROWS + 1
        key = columns.split(", ")[0]
        for part in range(parts):
            of_part = f"WHERE hash(({key})::BIGINT) % {parts} = {part}"
            one, other = (f"{read(Path(side), view, columns)} {of_part}" for side in (expected, found))
            lacks += count(f"{one} EXCEPT ALL {other}")
            has += count(f"{other} EXCEPT ALL {one}")
        if lacks or has:
            print(f"{view}: {lacks} rows are not in {found}, {has} are only there", file=sys.stderr)
        rows, missing, extra = rows + of_view, missing + lacks, extra + has
    print(json.dumps({"rows": rows, "missing": missing, "extra": extra}))
    return int(missing + extra > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
