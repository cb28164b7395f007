"""The end of jobs that returned a value and did nothing else, as most do: three columns say it all.

Of any other outcome `jobs.settle_some` writes the effects, too.
"""

from collections.abc import Sequence

from milepost.records import Settlement
from milepost.store.driver import Call, Steps


def is_plain(settlement: Settlement) -> bool:
    """Tell whether a job returned a value, and its end takes nothing but its own row."""
    moved = settlement.outcome.move == "succeed" and settlement.claim.run_id is None
    return moved and not has_effects(settlement)


def has_effects(settlement: Settlement) -> bool:
    """Tell whether an outcome writes more than the job's row."""
    outcome = settlement.outcome
    made = outcome.usage or outcome.staged or outcome.kept or outcome.lines
    return bool(made or outcome.problem or outcome.note)


def settle(ordered: Sequence[Settlement], *, actor: str) -> Steps[set[str]]:
    """End such jobs; answer with the ids that were held."""
    ids = [settlement.claim.id for settlement in ordered]
    rows = yield Call(
        "job_succeed",
        {
            "id": ids,
            "fence": [settlement.claim.fence for settlement in ordered],
            "result": [settlement.outcome.result for settlement in ordered],
            "actor": actor,
        },
        alone=True,
    )
    return set(ids) if rows and rows[0][0] is None else {row[0] for row in rows}
