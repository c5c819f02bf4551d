"""Our jobs, written for Polars."""

from pathlib import Path

import polars as pl
from views import aggregate_views, is_read_from

VERSION = pl.__version__
BY_GENDER = pl.col("gender").replace_strict({"F": 1, "M": 2, "X": 3}, default=None, return_dtype=pl.Int64)
# Ids of efforts have less than 40 bits here, so that one number orders times and ids.
KEY = pl.col("elapsed_time") * (1 << 40) + pl.col("effort_id")
MEMBER = ["segment_id", "division", "period", "athlete_id"]
BUCKETS = {"quarter": "15m", "hour": "1h", "day": "1d", "month": "1mo"}


class Engine:
    """Runs jobs from Parquet files to Parquet files, streaming."""

    def plays(self, files: str, views_folder: Path, out: Path) -> None:
        """Deduplicates events, then computes the detail view and its roll-ups. Views that others read stay in memory."""
        views = aggregate_views(views_folder, "plays")
        events, frames = deduplicate(views, files), {}
        if sum(view.over is None for view in views) > 1:
            events = events.collect(engine="streaming").lazy()
        for view in views:
            rows = from_events(view, events) if view.over is None else rolled_up(view, views, frames[view.over])
            if is_read_from(view, views):
                frames[view.name] = rows.collect(engine="streaming")
                rows = frames[view.name].lazy()
            write(rows, out / f"{view.name}.parquet")

    def efforts(self, files: str, views_folder: Path, out: Path) -> None:
        """Computes the boards of segments. Gender and weight class are constant for a member, so the overall board has the best effort."""
        visible = visible_efforts(files).collect(engine="streaming").lazy()
        overall = best(visible, pl.lit(0), pl.lit(0)).collect(engine="streaming").lazy()
        boards = [
            overall,
            overall.with_columns(division=BY_GENDER).filter(pl.col("division").is_not_null()),
            overall.with_columns(division=1000 + pl.col("weight_class")).filter(pl.col("weight_class").is_not_null()),
            best(visible.filter(pl.col("age_group").is_not_null()), 100 + pl.col("age_group"), pl.lit(0)),
            best(visible, pl.lit(0), pl.col("day") // 10_000),
            best(visible, pl.lit(0), pl.col("day") // 100),
            best(visible, pl.lit(0), pl.col("day")),
        ]
        write(pl.concat(boards), out / "segment_boards.parquet")

    def peer_boards(self, files: str, views_folder: Path, out: Path) -> None:
        """Computes four kinds of boards, with ranks."""
        visible = visible_efforts(files).collect(engine="streaming").lazy()
        zero = pl.lit(0)
        boards = [
            least(visible, zero, zero),
            least(visible, BY_GENDER, zero),
            least(visible, 100 + pl.col("age_group"), zero),
            least(visible, zero, pl.col("day") // 10_000),
        ]
        board = MEMBER[:3]
        rows = pl.concat(boards).sort(*board, "key").with_columns(rank=pl.int_range(1, pl.len() + 1).over(board))
        rows = rows.with_columns(elapsed_time=pl.col("key") // (1 << 40), effort_id=pl.col("key") % (1 << 40)).drop("key")
        write(rows, out / "peer_boards.parquet")

    def authorizations(self, files: str, views_folder: Path, out: Path) -> None:
        """Lists the athletes that are connected to each application."""
        connected = pl.scan_parquet(files).filter(pl.col("revoked_at").is_null(), ~pl.col("athlete_is_deleted"))
        rows = connected.group_by("application_id", "athlete_id").agg(authorizations=pl.len())
        write(rows, out / "application_athletes.parquet")

    def close(self) -> None:
        pass


def write(rows: pl.LazyFrame, out: Path) -> None:
    """Writes rows as our own files are."""
    rows.sink_parquet(out, compression="zstd", compression_level=1, maintain_order=False, engine="streaming")


def deduplicate(views, files: str) -> pl.LazyFrame:
    """Deduplicates events, with the columns that views read. Duplicates share owner, time and event id."""
    readers = [view for view in views if view.over is None]
    columns = {column for view in readers for column in [*view.group, *view.dimensions, "amount"]} - {"owner_id"}
    return pl.scan_parquet(files).group_by("owner_id", "at", "event_id").agg(pl.col(sorted(columns)).first())


def from_events(view, events: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of a view that reads the events."""
    bucket = pl.col("at").dt.truncate(BUCKETS[view.bucket])
    return events.with_columns(bucket=bucket).group_by(view.keys).agg(count=pl.col("amount").sum())


def rolled_up(view, views, rows: pl.DataFrame) -> pl.LazyFrame:
    """The rows of a view that reads from another one."""
    base = next(other for other in views if other.name == view.over)
    frame = rows.lazy()
    for column in view.keys:
        if column == "bucket" and view.bucket != base.bucket:
            frame = frame.with_columns(bucket=pl.col("bucket").dt.truncate(BUCKETS[view.bucket]))
        elif column.endswith("_cell") and column not in base.keys:
            frame = frame.with_columns(cell(f"{column.removesuffix('_cell')}_id").alias(column))
    return frame.group_by(view.keys).agg(count=pl.col("count").sum())


def cell(column: str) -> pl.Expr:
    """`jobs::sketch::compute_cell`: XXH3 of the eight bytes of an id, then its register and rank. Products wrap. Polars has no shifts, so
    they are multiplications and divisions by powers of two."""
    u64 = lambda number: pl.lit(number, dtype=pl.UInt64)
    left = lambda value, bits: value * u64(1 << bits)
    right = lambda value, bits: value // u64(1 << bits)
    rotated = lambda value, bits: left(value, bits) | right(value, 64 - bits)
    factor = u64(0x9FB21C651E98DF25)
    hash = rotated(pl.col(column).cast(pl.UInt64), 32) ^ u64(0xC73AB174C5ECD5A2)
    hash = (hash ^ rotated(hash, 49) ^ rotated(hash, 24)) * factor
    hash = (hash ^ (right(hash, 35) + u64(8))) * factor
    hash = hash ^ right(hash, 28)
    rank = (right(hash, 10) | u64(1 << 53)).bitwise_trailing_zeros()
    return (hash % u64(1024)).cast(pl.Int64) * 64 + rank.cast(pl.Int64)


def visible_efforts(files: str) -> pl.LazyFrame:
    """Selects visible efforts, with the columns that assign them to boards."""
    weight, age = pl.col("weight_kg"), pl.col("day") // 10_000 - pl.col("birth_year")
    hidden = pl.col("is_hidden") | pl.col("is_deleted") | pl.col("athlete_is_deleted") | pl.col("athlete_is_disqualified")
    classes = [(55, 0), (65, 55), (75, 65), (85, 75), (95, 85), (105, 95), (115, 105)]
    ages = [(20, 0), (25, 20), (35, 25), (45, 35), (55, 45), (65, 55), (70, 65), (75, 70)]
    return pl.scan_parquet(files).filter(~hidden).select(
        "segment_id", "athlete_id", "elapsed_time", effort_id="id", activity_id="activity_id", started_at="started_at",
        day=pl.col("day"), gender="gender", birth_year="birth_year",
        weight_class=classify(weight, classes, 115),
        age_group=pl.when(age >= 0).then(classify(age, ages, 75)),
    )


def classify(value: pl.Expr, steps: list[tuple[int, int]], last: int) -> pl.Expr:
    """Returns the class of a value: the class of the first step above it."""
    chosen = pl.when(value.is_null()).then(pl.lit(None, dtype=pl.Int64))
    for below, number in steps:
        chosen = chosen.when(value < below).then(pl.lit(number, dtype=pl.Int64))
    return chosen.otherwise(pl.lit(last, dtype=pl.Int64))


def best(efforts: pl.LazyFrame, division: pl.Expr, period: pl.Expr) -> pl.LazyFrame:
    """Selects the best effort of each athlete on boards of one kind."""
    columns = ["elapsed_time", "effort_id", "activity_id", "started_at", "gender", "birth_year", "weight_class"]
    placed = efforts.with_columns(key=KEY, division=division.cast(pl.Int64), period=period.cast(pl.Int64))
    return placed.group_by(MEMBER).agg(*[pl.col(column).min_by("key") for column in columns], efforts=pl.len())


def least(efforts: pl.LazyFrame, division: pl.Expr, period: pl.Expr) -> pl.LazyFrame:
    """Selects the smallest key of each athlete on boards of one kind."""
    placed = efforts.select("segment_id", "athlete_id", key=KEY, division=division.cast(pl.Int64), period=period.cast(pl.Int64))
    return placed.filter(pl.col("division").is_not_null()).group_by(MEMBER).agg(pl.col("key").min())
