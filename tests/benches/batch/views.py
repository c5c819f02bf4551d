"""The definitions of our own views, as every engine here reads them: from jobs/views, so that a view that is added there is in the
comparison too. What a definition means is written once for each engine, in its own module."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

BUCKETS = ("quarter", "hour", "day", "month", "all")


@dataclass(frozen=True)
class Tally:
    """A view that adds up plays, from the plays themselves or from the rows of another one."""

    name: str
    over: str | None
    bucket: str
    group: tuple[str, ...]
    dimensions: tuple[str, ...]

    @property
    def keys(self) -> list[str]:
        """The columns that tell its rows apart, in the order of the key."""
        bucket = [] if self.bucket == "all" else ["bucket"]
        return [*self.group, *bucket, *self.dimensions]


def tallies(folder: Path, source: str) -> list[Tally]:
    """The tallies of a source, each after the one that it reads from."""
    waiting = {}
    for file in sorted(folder.glob("*/job.toml")):
        job = tomllib.loads(file.read_text())
        if job["kind"] == "aggregate" and job["source"] == source and job["layers"] in ("both", "batch"):
            name, over = file.parent.name, job.get("over")
            waiting[name] = Tally(name, over, job["bucket"], tuple(job["group"]), tuple(job["dimensions"]))
    ordered: list[Tally] = []
    while waiting:
        ready = [view for view in waiting.values() if view.over not in waiting]
        if not ready:
            raise SystemExit(f"views that read from each other: {', '.join(waiting)}")
        for view in ready:
            if view.bucket not in BUCKETS:
                raise SystemExit(f"{view.name}: no engine here knows the bucket {view.bucket!r}")
            ordered.append(view)
            del waiting[view.name]
    return ordered


def is_read_from(view: Tally, views: list[Tally]) -> bool:
    """Whether another view is made of its rows."""
    return any(other.over == view.name for other in views)
