"""Options of a pipeline, each declared once: its type, bounds, default and meaning."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict, cast

from milepost.codec import check_text
from milepost.errors import Invalid
from milepost.options import Rule, Seconds, Text, Whole, check_names, rules

Field = str | Callable[[Any], Any]
"""How a value is found in a raw record: the name of a field, or a function of the record."""
MOST = 100_000


class Share(Rule, frozen=True, kw_only=True):
    """A share of all records."""

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for anything else."""
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise Invalid(f"{name}={value!r} takes a share between 0 and 1")


class Name(Rule, frozen=True, kw_only=True):
    """A name, or something else that a test tells."""

    other: Callable[[Any], bool] = callable

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for a value that is neither."""
        if not self.other(value):
            check_text(value, what=name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _Needed(TypedDict):
    key: Annotated[Field, Name()]
    """The field that identifies a record, or a function of the raw record."""
    partition_by: Annotated[str, Text()]
    """The field whose range is cut into partitions."""


class PipelineOptions(_Needed, total=False):
    """The options of `app.pipeline`."""

    version: Annotated[Field | None, Name()]
    """The field that grows with every change of a record, or a function of the raw record."""
    partitions: Annotated[int, Whole(least=1, most=MOST, default=30)]
    """How many partitions a run is cut into, and read by at once."""
    overlap: Annotated[float, Seconds(default=900)]
    """Seconds before the watermark that an incremental run reads again."""
    margin: Annotated[float, Seconds(default=0)]
    """Seconds before the store's clock at which a window ends, without an `upper_bound`."""
    page: Annotated[int, Whole(least=1, most=MOST, default=30)]
    """How many records a page should have."""
    batch: Annotated[int, Whole(least=1, most=MOST, default=2000)]
    """How many records are mapped and enriched at a time."""
    upsert: Annotated[int, Whole(least=1, most=MOST, default=100)]
    """How many records a statement writes."""
    concurrency: Annotated[int, Whole(least=1, most=MOST, default=5)]
    """How many of these statements a consolidator has under way at once."""
    consolidators: Annotated[int, Whole(least=1, most=MOST, default=4)]
    """How many jobs consolidate a run."""
    rate: Annotated[str | float | None, Rule()]
    """How often the source may be called, by all workers together: "25/s"."""
    table: Annotated[str | None, Rule()]
    """The target table; the pipeline's own name unless given."""
    mapping_version: Annotated[int | str, Name(other=_is_number, default=1)]
    """Counted up when `map` or `enrich` was corrected: a full run then makes every record anew."""
    max_window: Annotated[float | None, Seconds(zero=False)]
    """Seconds that a window covers at most; None: up to now."""
    quarantine_limit: Annotated[float, Share(default=0.05)]
    """The share of records in quarantine above which a run fails."""
    removal_limit: Annotated[float, Share(default=0.2)]
    """The share of records gone from the source above which an operator decides."""
    retries: Annotated[int, Rule(default=3)]
    """How many failed or lost attempts of each job are followed by another one."""
    retry_delay: Annotated[float, Rule(default=1.0)]
    """Seconds before the second attempt; each further delay is twice as long."""
    poison_limit: Annotated[int, Rule(default=3)]
    """How many lost workers fail a job."""
    queue: Annotated[str, Text(default="default")]
    """The queue that the jobs of its runs wait in."""
    channel: Annotated[str | None, Text()]
    """The channel that is told how runs end, and when the watermark is too old."""
    messages: Annotated[str | None, Text()]
    """The channel that is sent WORK_DONE for each partition, and CONSOLIDATE."""
    fresh_within: Annotated[float | None, Seconds(zero=False)]
    """Seconds after which a watermark is too old."""
    watermark_file: Annotated[str | None, Text()]
    """A path, or an address for `fsspec`: the watermark as JSON, after each run that ended well."""


def with_defaults(asked: Mapping[str, Any], *, what: str) -> PipelineOptions:
    """Check the options of a pipeline, and fill in those that were not given."""
    check_names(PipelineOptions, asked, what=what)
    known = rules(PipelineOptions)
    chosen = {name: asked.get(name, rule.default) for name, rule in known.items()}
    for name, rule in known.items():
        is_optional = rule.default is None and name not in _Needed.__annotations__
        if chosen[name] is not None or not is_optional:
            rule.check(name, chosen[name])
    return cast("PipelineOptions", chosen)
