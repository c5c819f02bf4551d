"""Our jobs, written for DuckDB."""

from pathlib import Path

import duckdb
from views import aggregate_views, is_read_from

VERSION = duckdb.__version__
# As our own files.
PARQUET = "format parquet, compression zstd, compression_level 1"
TEXTS = ("country", "kind", "referrer")
BUCKETS_US = {"quarter": 900_000_000, "hour": 3_600_000_000, "day": 86_400_000_000}


def connect(threads: int, spill: Path) -> duckdb.DuckDBPyConnection:
    """Opens a database in memory, which may spill."""
    db = duckdb.connect()
    db.execute(f"SET threads = {threads}")
    db.execute(f"SET temp_directory = '{spill}'")
    # Rows are summed and sorted at the end, so the order of the files does not matter.
    db.execute("SET preserve_insertion_order = false")
    return db


class Engine:
    """Runs jobs from Parquet files to Parquet files."""

    def __init__(self, threads: int, spill: Path, is_sorted: bool = False):
        self.db = connect(threads, spill)
        self.is_sorted = is_sorted
        self.db.execute("CREATE MACRO low(h) AS (h & 18446744073709551615::UHUGEINT)::UBIGINT")
        self.db.execute("CREATE MACRO rotated(h, bits) AS low((h::UHUGEINT << bits) | (h >> (64 - bits))::UHUGEINT)")

    def write(self, rows: str, order: list[str], out: Path) -> None:
        """Writes the rows of a query to a file."""
        order_by = f" ORDER BY {', '.join(f'{column} NULLS FIRST' for column in order)}" if self.is_sorted else ""
        self.db.execute(f"COPY (FROM ({rows}){order_by}) TO '{out}' ({PARQUET})")

    def plays(self, files: str, views_folder: Path, out: Path) -> None:
        """Deduplicates events, then computes the detail view and its roll-ups. Views that others read stay in memory while they are needed:
        reading their files again took longer. Texts are ordered enums, which saved a third of the time."""
        views = aggregate_views(views_folder, "plays")
        for text in TEXTS:
            values = f"SELECT DISTINCT {text} FROM read_parquet('{files}') WHERE {text} IS NOT NULL ORDER BY 1"
            self.db.execute(f"CREATE TYPE {text}_text AS ENUM ({values})")
        events = deduplicate(views, files)
        if sum(view.over is None for view in views) > 1:
            self.db.execute(f"CREATE TEMP TABLE events AS {events}")
            events = "events"
        for index, view in enumerate(views):
            rows = from_events(view, events) if view.over is None else rolled_up(view, views)
            if is_read_from(view, views):
                self.db.execute(f"CREATE TEMP TABLE {view.name} AS {rows}")
                rows = f"FROM {view.name}"
            if view.over is None and "listener_id" in view.keys:
                self.db.execute(CELLS.format(detail=view.name))
            self.write(rows, view.keys, out / f"{view.name}.parquet")
            if view.over is not None and not any(other.over == view.over for other in views[index + 1 :]):
                self.db.execute(f"DROP TABLE {view.over}")

    def efforts(self, files: str, views_folder: Path, out: Path) -> None:
        """Computes the boards of segments. Gender and weight class are constant for a member, so the overall board has the best effort."""
        self.db.execute(f"CREATE TEMP TABLE visible AS {VISIBLE.format(files=files)}")
        self.db.execute(f"CREATE TEMP TABLE overall AS {best('0', '0')}")
        boards = [
            "FROM overall",
            "SELECT * REPLACE (CASE gender WHEN 'F' THEN 1 WHEN 'M' THEN 2 ELSE 3 END AS division) FROM overall WHERE gender IN ('F', 'M', 'X')",
            "SELECT * REPLACE (1000 + weight_class AS division) FROM overall WHERE weight_class IS NOT NULL",
            best("100 + age_group", "0", "age_group IS NOT NULL"),
            best("0", "day // 10000"),
            best("0", "day // 100"),
            best("0", "day"),
        ]
        columns = "segment_id, division, period, athlete_id, unnest(effort), gender, birth_year, weight_class, efforts"
        rows = f"SELECT {columns} FROM ({' UNION ALL '.join(boards)})"
        order = ["segment_id", "division", "period", "elapsed_time", "effort_id", "athlete_id"]
        self.write(rows, order, out / "segment_boards.parquet")

    def peer_boards(self, files: str, views_folder: Path, out: Path) -> None:
        """Computes four kinds of boards, with ranks. Time and id form one number, so that the best effort has the smallest."""
        self.db.execute(f"CREATE TEMP TABLE visible AS {VISIBLE.format(files=files)}")
        least = (
            "SELECT segment_id, {division} AS division, {period} AS period, athlete_id, min((elapsed_time::HUGEINT << 64) + id) AS key "
            "FROM visible WHERE {condition} GROUP BY ALL"
        )
        gender = "CASE gender WHEN 'F' THEN 1 WHEN 'M' THEN 2 ELSE 3 END"
        boards = [
            least.format(division="0", period="0", condition="true"),
            least.format(division=gender, period="0", condition="gender IN ('F', 'M', 'X')"),
            least.format(division="100 + age_group", period="0", condition="age_group IS NOT NULL"),
            least.format(division="0", period="day // 10000", condition="true"),
        ]
        rows = (
            "SELECT segment_id, division, period, athlete_id, (key >> 64)::BIGINT AS elapsed_time, "
            "(key & 18446744073709551615::HUGEINT)::BIGINT AS effort_id, "
            "row_number() OVER (PARTITION BY segment_id, division, period ORDER BY key) AS rank "
            f"FROM ({' UNION ALL '.join(boards)})"
        )
        self.write(rows, ["segment_id", "division", "period", "rank"], out / "peer_boards.parquet")

    def authorizations(self, files: str, views_folder: Path, out: Path) -> None:
        """Lists the athletes that are connected to each application."""
        rows = (
            f"SELECT application_id, athlete_id, count(*) AS authorizations FROM read_parquet('{files}') "
            "WHERE revoked_at IS NULL AND NOT athlete_is_deleted GROUP BY ALL"
        )
        self.write(rows, ["application_id", "athlete_id"], out / "application_athletes.parquet")

    def close(self) -> None:
        self.db.close()


def deduplicate(views, files: str, condition: str = "true") -> str:
    """Deduplicates events, with the amount and the columns that views read. Duplicates share owner, time and event id."""
    readers = [view for view in views if view.over is None]
    columns = {"amount", *(column for view in readers for column in [*view.group, *view.dimensions])} - {"owner_id"}
    typed = lambda column: f"::{column}_text" if column in TEXTS else ""
    selected = ", ".join(f"any_value({column}){typed(column)} AS {column}" for column in sorted(columns))
    return f"(SELECT owner_id, \"at\", {selected} FROM read_parquet('{files}') WHERE {condition} GROUP BY owner_id, \"at\", event_id)"


def from_events(view, events: str) -> str:
    """The rows of a view that reads the events."""
    width_us = BUCKETS_US[view.bucket]
    bucket = f"make_timestamp(epoch_us(\"at\") // {width_us} * {width_us}) AS bucket"
    columns = ", ".join([*view.group, bucket, *view.dimensions])
    return f"SELECT {columns}, sum(amount)::BIGINT AS count FROM {events} GROUP BY ALL"


def rolled_up(view, views) -> str:
    """The rows of a view that reads from another one."""
    base = next(other for other in views if other.name == view.over)
    columns, rows = [], view.over
    for column in view.keys:
        if column == "bucket" and view.bucket != base.bucket:
            columns.append(f"date_trunc('{view.bucket}', bucket)::TIMESTAMP AS bucket")
        elif column.endswith("_cell") and column not in base.keys:
            columns.append(f"cell AS {column}")
            rows = f"{view.over} LEFT JOIN cells ON id = {column.removesuffix('_cell')}_id"
        else:
            columns.append(column)
    return f"SELECT {', '.join(columns)}, sum(count)::BIGINT AS count FROM {rows} GROUP BY ALL"


VISIBLE = """
SELECT
    segment_id, athlete_id, elapsed_time, id, activity_id, started_at, day::INTEGER AS day, gender, birth_year::INTEGER AS birth_year,
    CASE
        WHEN weight_kg < 55 THEN 0
        WHEN weight_kg >= 115 THEN 115
        ELSE floor((weight_kg - 5) / 10)::INTEGER * 10 + 5
    END AS weight_class,
    day // 10000 - birth_year AS age,
    CASE
        WHEN age < 0 THEN NULL
        WHEN age < 20 THEN 0
        WHEN age < 25 THEN 20
        WHEN age < 35 THEN 25
        WHEN age < 45 THEN 35
        WHEN age < 55 THEN 45
        WHEN age < 65 THEN 55
        WHEN age < 70 THEN 65
        WHEN age < 75 THEN 70
        WHEN age >= 75 THEN 75
    END AS age_group
FROM read_parquet('{files}')
WHERE NOT is_hidden AND NOT is_deleted AND NOT athlete_is_deleted AND NOT athlete_is_disqualified
"""


def best(division: str, period: str, condition: str = "true") -> str:
    """Selects the best effort of each athlete on boards of one kind. The minimum of a struct was the fastest variant. Others were
    `arg_min`, a packed key that is joined with the efforts again, and `DISTINCT ON`."""
    effort = "struct_pack(elapsed_time := elapsed_time, effort_id := id, activity_id := activity_id, started_at := started_at)"
    return (
        f"SELECT segment_id, {division} AS division, {period} AS period, athlete_id, min({effort}) AS effort, "
        "any_value(gender) AS gender, any_value(birth_year) AS birth_year, any_value(weight_class) AS weight_class, "
        f"count(*) AS efforts FROM visible WHERE {condition} GROUP BY ALL"
    )


# By listener, `jobs::sketch::compute_cell`: XXH3 of the eight bytes of the id, then its register and rank. Wrapping products need 128
# bits here, so each id (which is not negative) is hashed once, and rows look up the result.
CELLS = """
CREATE TEMP TABLE cells AS
SELECT id, ((hash & 1023) * 64 + bit_count((rank & (xor(rank, 18446744073709551615) + 1)) - 1))::BIGINT AS cell
FROM (
  SELECT id, hash, (hash >> 10) | 9007199254740992 AS rank
  FROM (
    SELECT id, xor(h3, h3 >> 28) AS hash
    FROM (
      SELECT id, low(xor(h2, (h2 >> 35) + 8)::UHUGEINT * 11507291218515648293::UHUGEINT) AS h3
      FROM (
        SELECT id, low(xor(xor(h1, rotated(h1, 49)), rotated(h1, 24))::UHUGEINT * 11507291218515648293::UHUGEINT) AS h2
        FROM (
          SELECT id, xor(rotated(id::UBIGINT, 32), 14355981877291832738::UBIGINT) AS h1
          FROM (SELECT DISTINCT listener_id AS id FROM {detail} WHERE listener_id IS NOT NULL)
        )
      )
    )
  )
)
"""
