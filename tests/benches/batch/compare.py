"""Compares results row by row, in DuckDB: `compare.py JOB VIEWS EXPECTED FOUND SPILL`, both folders with a file (or a folder of files) for
each view. Prints the numbers of expected, missing and extra rows. The exit status is 1 if any row is missing or extra.

Rows may be in any order, and integers may have different types. Times are compared in microseconds."""

import json
import sys
from pathlib import Path

import duckdb
from views import aggregate_views

PART_ROWS = 20_000_000
# Counts missing and extra rows in one pass, as `EXCEPT ALL` in both directions does.
DIFFERENCE = """
SELECT coalesce(sum(greatest(more, 0)), 0)::BIGINT, coalesce(sum(greatest(-more, 0)), 0)::BIGINT
FROM (
    SELECT {columns}, sum(side) AS more
    FROM (SELECT 1 AS side, * FROM ({expected}) UNION ALL SELECT -1, * FROM ({actual}))
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
    to_sql = lambda column: "epoch_us(bucket)" if column == "bucket" else column
    return [(view.name, ", ".join([*map(to_sql, view.keys), "count"])) for view in aggregate_views(folder, "plays")]


def read(folder: Path, view: str, columns: str) -> str:
    """The rows of a view. All integers are compared as 64 bits."""
    files = folder / f"{view}.parquet"
    if files.is_dir():
        files = files / "*.parquet"
    texts = ("kind", "country", "referrer", "gender")
    typed = (column if column in texts else f"({column})::BIGINT" for column in columns.split(", "))
    renamed = ", ".join(f"{column} AS c{index}" for index, column in enumerate(typed))
    return f"SELECT {renamed} FROM read_parquet('{files}')"


def main(job: str, folder: str, expected: str, actual: str, spill: str) -> int:
    db = duckdb.connect()
    db.execute("SET threads = 2")
    db.execute("SET TimeZone = 'UTC'")
    db.execute("SET preserve_insertion_order = false")
    db.execute(f"SET temp_directory = '{spill}'")
    rows, missing, extra = 0, 0, 0
    for view, columns in views(job, Path(folder)):
        sides = [read(Path(side), view, columns) for side in (expected, actual)]
        view_rows = db.execute(f"SELECT count(*) FROM ({sides[0]})").fetchone()[0]
        view_missing, view_extra = 0, 0
        # Compares some keys at a time to bound memory.
        parts = view_rows // PART_ROWS + 1
        key = columns.split(", ")[0]
        names = ", ".join(f"c{index}" for index in range(len(columns.split(", "))))
        for part in range(parts):
            condition = f"WHERE hash(({key})::BIGINT) % {parts} = {part}"
            expected_rows, actual_rows = (f"{side} {condition}" for side in sides)
            part_missing, part_extra = db.execute(DIFFERENCE.format(columns=names, expected=expected_rows, actual=actual_rows)).fetchone()
            view_missing, view_extra = view_missing + part_missing, view_extra + part_extra
        if view_missing or view_extra:
            print(f"{view}: {view_missing} rows are missing in {actual}, {view_extra} are extra", file=sys.stderr)
        rows, missing, extra = rows + view_rows, missing + view_missing, extra + view_extra
    print(json.dumps({"rows": rows, "missing": missing, "extra": extra}))
    return int(missing + extra > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
