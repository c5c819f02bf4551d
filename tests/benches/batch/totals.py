"""Computes the totals of aggregate views, where comparing them row by row would take too long: `totals.py INPUT VIEWS SPILL THREADS`.

Prints the total of each bucket for each view of plays, by the bucket's start in microseconds (0 for all time). A total is the sum of the
amounts of the distinct events of that time."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from duck import BUCKETS_US, connect, deduplicate
from views import aggregate_views

# Events are deduplicated for some owners at a time to bound memory.
PARTS = 16
WIDTH_US = BUCKETS_US["quarter"]


def sum_quarters(db, views, files: str) -> dict[int, int]:
    """Sums the amounts of each quarter hour."""
    totals: dict[int, int] = {}
    for part in range(PARTS):
        events = deduplicate(views, files, f"hash(owner_id) % {PARTS} = {part}")
        rows = db.execute(f"SELECT epoch_us(\"at\") // {WIDTH_US} * {WIDTH_US}, sum(amount)::BIGINT FROM {events} GROUP BY 1")
        for bucket, count in rows.fetchall():
            totals[bucket] = totals.get(bucket, 0) + count
    return totals


def bucket_start(bucket: str, time_us: int) -> int:
    """Returns the start of the bucket that contains a time."""
    if bucket == "all":
        return 0
    if bucket == "month":
        month = datetime.fromtimestamp(time_us / 1e6, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return int(month.timestamp()) * 1_000_000
    return time_us // BUCKETS_US[bucket] * BUCKETS_US[bucket]


def main(files: str, folder: str, spill: str, threads: str) -> None:
    views = aggregate_views(Path(folder), "plays")
    parts = sum_quarters(connect(int(threads), Path(spill)), [], files)
    totals: dict[str, dict[int, int]] = {}
    for view in views:
        buckets = totals.setdefault(view.name, {})
        for time_us, count in parts.items():
            bucket = bucket_start(view.bucket, time_us)
            buckets[bucket] = buckets.get(bucket, 0) + count
    print(json.dumps(totals))


if __name__ == "__main__":
    main(*sys.argv[1:])
