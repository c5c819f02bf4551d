"""What tallies add up to, where comparing them row by row would take too long: `totals.py INPUT VIEWS SPILL THREADS`.

Prints for each view of plays how much each of its buckets has, by the bucket's beginning in microseconds (0 where a row holds all time): the
amounts of the events of that time, each event once."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from duck import BUCKETS_US, connect, once
from views import tallies

# Events are told apart some owners at a time, so that little is held in memory.
PARTS = 16
WIDTH_US = BUCKETS_US["quarter"]


def quarters(db, views, files: str) -> dict[int, int]:
    """How much each quarter of an hour has."""
    found: dict[int, int] = {}
    for part in range(PARTS):
        events = once(views, files, f"hash(owner_id) % {PARTS} = {part}")
        rows = db.execute(f"SELECT epoch_us(\"at\") // {WIDTH_US} * {WIDTH_US}, sum(amount)::BIGINT FROM {events} GROUP BY 1")
        for bucket, count in rows.fetchall():
            found[bucket] = found.get(bucket, 0) + count
    return found


def beginning(bucket: str, at_us: int) -> int:
    """Where the bucket of a time begins."""
    if bucket == "all":
        return 0
    if bucket == "month":
        month = datetime.fromtimestamp(at_us / 1e6, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return int(month.timestamp()) * 1_000_000
    return at_us // BUCKETS_US[bucket] * BUCKETS_US[bucket]


def main(files: str, folder: str, spill: str, threads: str) -> None:
    views = tallies(Path(folder), "plays")
    parts = quarters(connect(int(threads), Path(spill)), [], files)
    totals: dict[str, dict[int, int]] = {}
    for view in views:
        buckets = totals.setdefault(view.name, {})
        for at_us, count in parts.items():
            bucket = beginning(view.bucket, at_us)
            buckets[bucket] = buckets.get(bucket, 0) + count
    print(json.dumps(totals))


if __name__ == "__main__":
    main(*sys.argv[1:])
