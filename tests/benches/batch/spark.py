"""Our jobs, written for Spark."""

from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from views import aggregate_views, is_read_from

VERSION = pyspark.__version__
# Divisor of the machine's memory; data that does not fit is spilled.
MEMORY_DIVISOR = 2
BUCKETS_US = {"quarter": 900_000_000, "hour": 3_600_000_000, "day": 86_400_000_000}
GENDER = "CASE gender WHEN 'F' THEN 1L WHEN 'M' THEN 2L ELSE 3L END"
AGES = [(20, 0), (25, 20), (35, 25), (45, 35), (55, 45), (65, 55), (70, 65), (75, 70)]
WEIGHTS = [(55, 0), (65, 55), (75, 65), (85, 75), (95, 85), (105, 95), (115, 105)]


class Engine:
    """Runs jobs from Parquet files to Parquet files, on local threads."""

    def __init__(self, threads: int, spill: Path):
        settings = {
            "spark.driver.memory": f"{memory_gib() // MEMORY_DIVISOR}g",
            "spark.local.dir": str(spill),
            "spark.sql.shuffle.partitions": str(4 * threads),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.parquet.compression.codec": "zstd",
            # As our own files.
            "spark.hadoop.parquet.compression.codec.zstd.level": "1",
            # The hash of sketches wraps.
            "spark.sql.ansi.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.log.level": "ERROR",
        }
        builder = SparkSession.builder.master(f"local[{threads}]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        self.session = builder.getOrCreate()

    def sql(self, query: str):
        return self.session.sql(query)

    def read(self, files: str, table: str) -> None:
        """Registers files as a table."""
        self.session.read.parquet(files).createOrReplaceTempView(table)

    def write(self, rows, out: Path) -> None:
        rows.write.mode("overwrite").parquet(str(out))

    def plays(self, files: str, views_folder: Path, out: Path) -> None:
        """Deduplicates events, then computes the detail view and its roll-ups. Views that others read are read again from
        their files."""
        views = aggregate_views(views_folder, "plays")
        self.read(files, "records")
        self.sql(deduplicate(views)).createOrReplaceTempView("events")
        if sum(view.over is None for view in views) > 1:
            self.write(self.sql("SELECT * FROM events"), out / "events")
            self.read(str(out / "events"), "events")
        for view in views:
            written = out / f"{view.name}.parquet"
            self.write(self.sql(from_events(view) if view.over is None else rolled_up(view, views)), written)
            if is_read_from(view, views):
                self.read(str(written), view.name)

    def efforts(self, files: str, views_folder: Path, out: Path) -> None:
        """Computes the boards of segments. Gender and weight class are constant for a member, so the overall board has the best effort."""
        self.read(files, "efforts")
        self.sql(VISIBLE).createOrReplaceTempView("visible")
        self.sql(best("0L", "0L")).createOrReplaceTempView("overall")
        shown = "period, athlete_id, effort, gender, birth_year, weight_class, efforts"
        boards = [
            "SELECT * FROM overall",
            f"SELECT segment_id, {GENDER} AS division, {shown} FROM overall WHERE gender IN ('F', 'M', 'X')",
            f"SELECT segment_id, 1000L + weight_class AS division, {shown} FROM overall WHERE weight_class IS NOT NULL",
            best("100L + age_group", "0L", "age_group IS NOT NULL"),
            best("0L", "day DIV 10000"),
            best("0L", "day DIV 100"),
            best("0L", "day"),
        ]
        rows = (
            "SELECT segment_id, division, period, athlete_id, effort.*, gender, birth_year, weight_class, efforts "
            f"FROM ({' UNION ALL '.join(boards)})"
        )
        self.write(self.sql(rows), out / "segment_boards.parquet")

    def peer_boards(self, files: str, views_folder: Path, out: Path) -> None:
        """Computes four kinds of boards, with ranks."""
        self.read(files, "efforts")
        self.sql(VISIBLE).createOrReplaceTempView("visible")
        boards = [
            least("0L", "0L"),
            least(GENDER, "0L", "gender IN ('F', 'M', 'X')"),
            least("100L + age_group", "0L", "age_group IS NOT NULL"),
            least("0L", "day DIV 10000"),
        ]
        rows = (
            "SELECT segment_id, division, period, athlete_id, effort.*, "
            "row_number() OVER (PARTITION BY segment_id, division, period ORDER BY effort) AS rank "
            f"FROM ({' UNION ALL '.join(boards)})"
        )
        self.write(self.sql(rows), out / "peer_boards.parquet")

    def authorizations(self, files: str, views_folder: Path, out: Path) -> None:
        """Lists the athletes that are connected to each application."""
        self.read(files, "authorizations")
        rows = self.sql(
            "SELECT application_id, athlete_id, count(*) AS authorizations FROM authorizations "
            "WHERE revoked_at IS NULL AND NOT athlete_is_deleted GROUP BY application_id, athlete_id"
        )
        self.write(rows, out / "application_athletes.parquet")

    def close(self) -> None:
        self.session.stop()


def memory_gib() -> int:
    """Returns the machine's memory."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) >> 20
    raise SystemExit("/proc/meminfo has no MemTotal")


def deduplicate(views) -> str:
    """Deduplicates events, with the columns that views read. Duplicates share owner, time and event id."""
    readers = [view for view in views if view.over is None]
    columns = {column for view in readers for column in [*view.group, *view.dimensions, "amount"]} - {"owner_id"}
    selected = ", ".join(f"first({column}) AS {column}" for column in sorted(columns))
    return f"SELECT owner_id, at, {selected} FROM records GROUP BY owner_id, at, event_id"


def from_events(view) -> str:
    """The rows of a view that reads the events."""
    width_us = BUCKETS_US[view.bucket]
    bucket = f"timestamp_micros(unix_micros(at) DIV {width_us} * {width_us}) AS bucket"
    columns = ", ".join([*view.group, bucket, *view.dimensions])
    return f"SELECT {columns}, sum(amount) AS count FROM events GROUP BY ALL"


def rolled_up(view, views) -> str:
    """The rows of a view that reads from another one."""
    base = next(other for other in views if other.name == view.over)
    columns = []
    for column in view.keys:
        if column == "bucket" and view.bucket != base.bucket:
            columns.append(f"date_trunc('{view.bucket}', bucket) AS bucket")
        elif column.endswith("_cell") and column not in base.keys:
            columns.append(f"{cell(column.removesuffix('_cell') + '_id')} AS {column}")
        else:
            columns.append(column)
    return f"SELECT {', '.join(columns)}, sum(count) AS count FROM {view.over} GROUP BY ALL"


def cell(column: str) -> str:
    """`jobs::sketch::compute_cell`: XXH3 of the eight bytes of an id, then its register and rank."""
    rotated = lambda value, bits: f"(shiftleft({value}, {bits}) | shiftrightunsigned({value}, {64 - bits}))"
    factor, flip = to_signed(0x9FB21C651E98DF25), to_signed(0xC73AB174C5ECD5A2)
    keyed = f"({rotated(column, 32)} ^ {flip})"
    # Each step uses the previous value several times; a lambda keeps the text short.
    step = lambda value, expression: f"aggregate(array({value}), 0L, (_, h) -> {expression})"
    hash = step(keyed, f"(h ^ {rotated('h', 49)} ^ {rotated('h', 24)}) * {factor}")
    hash = step(hash, f"(h ^ (shiftrightunsigned(h, 35) + 8L)) * {factor}")
    rank = "(shiftrightunsigned(h, 10) | 9007199254740992L)"
    combined = f"(h & 1023L) * 64L + bit_count(({rank} & -{rank}) - 1L)"
    return step(step(hash, "h ^ shiftrightunsigned(h, 28)"), combined)


def to_signed(number: int) -> str:
    """Formats an unsigned 64-bit number as Spark's signed one."""
    return f"({number - (1 << 64) if number >> 63 else number}L)"


def classify(value: str, steps: list[tuple[int, int]], last: int) -> str:
    """Returns the class of a value: the class of the first step above it."""
    cases = " ".join(f"WHEN {value} < {below} THEN {number}L" for below, number in steps)
    return f"CASE WHEN {value} IS NULL THEN NULL {cases} ELSE {last}L END"


def best(division: str, period: str, condition: str = "true") -> str:
    """Selects the best effort of each athlete on boards of one kind."""
    return (
        f"SELECT segment_id, {division} AS division, {period} AS period, athlete_id, "
        "min(struct(elapsed_time, id AS effort_id, activity_id, started_at)) AS effort, first(gender) AS gender, "
        "first(birth_year) AS birth_year, first(weight_class) AS weight_class, count(*) AS efforts "
        f"FROM visible WHERE {condition} GROUP BY segment_id, athlete_id, {division}, {period}"
    )


def least(division: str, period: str, condition: str = "true") -> str:
    """Selects the smallest time and id of each athlete on boards of one kind."""
    return (
        f"SELECT segment_id, {division} AS division, {period} AS period, athlete_id, min(struct(elapsed_time, id AS effort_id)) AS effort "
        f"FROM visible WHERE {condition} GROUP BY segment_id, athlete_id, {division}, {period}"
    )


AGE = "(day DIV 10000 - birth_year)"
VISIBLE = f"""
SELECT segment_id, athlete_id, elapsed_time, id, activity_id, started_at, day, gender, birth_year,
    {classify('weight_kg', WEIGHTS, 115)} AS weight_class,
    CASE WHEN {AGE} >= 0 THEN {classify(AGE, AGES, 75)} END AS age_group
FROM efforts
WHERE NOT is_hidden AND NOT is_deleted AND NOT athlete_is_deleted AND NOT athlete_is_disqualified
"""
