"""Reads the definitions of our views from jobs/views, so that the comparison includes views that are added there. The module of each engine
implements the definitions."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

BUCKETS = ("quarter", "hour", "day", "month", "all")


@dataclass(frozen=True)
class AggregateView:
    """A view that sums plays, read from the plays or from another view."""

    name: str
    over: str | None
    bucket: str
    group: tuple[str, ...]
    dimensions: tuple[str, ...]

    @property
    def keys(self) -> list[str]:
        """The key columns, in the order of the key."""
        bucket = [] if self.bucket == "all" else ["bucket"]
        return [*self.group, *bucket, *self.dimensions]


def aggregate_views(folder: Path, source: str) -> list[AggregateView]:
    """Returns the aggregate views of a source, each after the view that it reads."""
    waiting = {}
    for file in sorted(folder.glob("*/job.toml")):
        job = tomllib.loads(file.read_text())
        if job["kind"] == "aggregate" and job["source"] == source and job["layers"] in ("both", "batch"):
            name, over = file.parent.name, job.get("over")
            waiting[name] = AggregateView(name, over, job["bucket"], tuple(job["group"]), tuple(job["dimensions"]))
    ordered: list[AggregateView] = []
    while waiting:
        ready = [view for view in waiting.values() if view.over not in waiting]
        if not ready:
            raise SystemExit(f"views read from each other: {', '.join(waiting)}")
        for view in ready:
            if view.bucket not in BUCKETS:
                raise SystemExit(f"{view.name}: unknown bucket {view.bucket!r}")
            ordered.append(view)
            del waiting[view.name]
    return ordered


def is_read_from(view: AggregateView, views: list[AggregateView]) -> bool:
    """Returns whether another view reads its rows."""
    return any(other.over == view.name for other in views)
