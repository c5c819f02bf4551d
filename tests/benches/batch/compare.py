"""Compares results row by row, in DuckDB: `compare.py JOB VIEWS EXPECTED FOUND SPILL`, both folders with a file (or a folder of files) for
each view. Prints how many rows are expected, how many of them are missing and how many others there are; ends with 1 if there are any.

Rows may stand in any order, and an integer may be of another type. Times are compared in microseconds."""

import json
import sys
from pathlib import Path

import duckdb
from views import tallies

PART_ROWS = 20_000_000
# What `EXCEPT ALL` gives in both directions, in one pass: how often each row comes more on one side than on the other.
DIFFERENCE = """
SELECT coalesce(sum(greatest(more, 0)), 0)::BIGINT, coalesce(sum(greatest(-more, 0)), 0)::BIGINT
FROM (
    SELECT {columns}, sum(side) AS more
    FROM (SELECT 1 AS side, * FROM ({one}) UNION ALL SELECT -1, * FROM ({other}))
    GROUP BY {columns}
)
"""
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
    typed = (column if column in texts else f"({column})::BIGINT" for column in columns.split(", "))
    named = ", ".join(f"{column} AS c{at}" for at, column in enumerate(typed))
    return f"SELECT {named} FROM read_parquet('{files}')"


def main(job: str, folder: str, expected: str, found: str, spill: str) -> int:
    db = duckdb.connect()
    db.execute("SET threads = 2")
    db.execute("SET TimeZone = 'UTC'")
    db.execute("SET preserve_insertion_order = false")
    db.execute(f"SET temp_directory = '{spill}'")
    rows, missing, extra = 0, 0, 0
    for view, columns in views(job, Path(folder)):
        sides = [read(Path(side), view, columns) for side in (expected, found)]
        of_view = db.execute(f"SELECT count(*) FROM ({sides[0]})").fetchone()[0]
        lacks, has = 0, 0
        # Some keys at a time, so that little is held in memory.
        parts = of_view // PART_ROWS + 1
        key = columns.split(", ")[0]
        names = ", ".join(f"c{at}" for at in range(len(columns.split(", "))))
        for part in range(parts):
            of_part = f"WHERE hash(({key})::BIGINT) % {parts} = {part}"
            one, other = (f"{side} {of_part}" for side in sides)
            found_more = db.execute(DIFFERENCE.format(columns=names, one=one, other=other)).fetchone()
            lacks, has = lacks + found_more[0], has + found_more[1]
        if lacks or has:
            print(f"{view}: {lacks} rows are not in {found}, {has} are only there", file=sys.stderr)
        rows, missing, extra = rows + of_view, missing + lacks, extra + has
    print(json.dumps({"rows": rows, "missing": missing, "extra": extra}))
    return int(missing + extra > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
