"""Scenes: how everything that `explain` tells of comes to stand where it does.

Each is played on a store of its own, by what programs, workers and people do. There is one for
every reason at least: `tests/web/test_explanations.py` fails where there is none.
"""

from tests.support.scenes import brokers, jobs, limits, named, queues, runs
from tests.support.scenes.stage import SCENES, Scene, Stage

__all__ = ["SCENES", "Scene", "Stage"]

_ = (brokers, jobs, limits, named, queues, runs)
