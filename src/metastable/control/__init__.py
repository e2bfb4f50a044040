"""What must I set so that this happens? The questions of the other rooms, turned around.

- how many clusters, until when: `temperature`, and for any knob `tune` -> `Setting`; a knob of your own is a `Knob`
- hold and release: `schedule` -> `Steering`
- one token in the right place: `place` with `Together` or `Apart` -> `Placement`
- what moves life times: `elasticities`, `paired_elasticities` -> `Elasticities`
- goals that cannot be reached are refused with the reason: `metastable.errors.GoalError`
"""

from metastable.control.elasticity import Elasticities, Elasticity, elasticities
from metastable.control.goals import Apart, Together
from metastable.control.knobs import Knob
from metastable.control.paired import paired_elasticities
from metastable.control.placement import Placement, place
from metastable.control.steered import Steering
from metastable.control.steering import schedule
from metastable.control.tries import Try
from metastable.control.tuning import Setting, temperature, tune

__all__ = [
    "Apart",
    "Elasticities",
    "Elasticity",
    "Knob",
    "Placement",
    "Setting",
    "Steering",
    "Together",
    "Try",
    "elasticities",
    "paired_elasticities",
    "place",
    "schedule",
    "temperature",
    "tune",
]
