"""Compares results row by row, in DuckDB: `compare.py JOB VIEWS EXPECTED FOUND`, both folders with a file (or a folder of files) for
each view. Prints the rows of both, and how many each has that the other has not; ends with 1 if there are any.

Rows of one key may stand in any order, and a column may have another integer type. Times are compared as seconds or microseconds."""

import json
import sys
from pathlib import Path

import duckdb
from views import tallies

BOARDS = {
    "efforts": (
        "segment_boards",
        "segment_id, division, period, athlete_id, elapsed_time, effort_id, activity_id, epoch_us(started_at), gender, birth_year, "
        "weight_class, efforts",
    ),
    "authorizations": ("application_athletes", "application_id, athlete_id, authorizations"),
}


def views(job: str, folder: Path) -> list[tuple[str, str]]:
    """The views of a job, with the columns that are compared."""
    if job in BOARDS:
        return [BOARDS[job]]
    shown = lambda column: "epoch_us(bucket)" if column == "bucket" else column
    return [(view.name, ", ".join([*map(shown, view.keys), "count"])) for view in tallies(folder, job)]


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
    rows, missing, extra = 0, 0, 0
    for view, columns in views(job, Path(folder)):
        one, other = (read(Path(side), view, columns) for side in (expected, found))
        count = lambda query: db.execute(f"SELECT count(*) FROM ({query})").fetchone()[0]
        lacks, has = count(f"{one} EXCEPT ALL {other}"), count(f"{other} EXCEPT ALL {one}")
        if lacks or has:
            print(f"{view}: {lacks} rows are not in {found}, {has} are only there", file=sys.stderr)
        rows, missing, extra = rows + count(one), missing + lacks, extra + has
    print(json.dumps({"rows": rows, "missing": missing, "extra": extra}))
    return int(missing + extra > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
