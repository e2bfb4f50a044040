"""What must I set so that this happens? The questions of the other rooms, turned around.

- how many clusters, until when: `temperature`, and for any knob `tune` -> `Setting`; a knob of your own is a `Knob`
- hold and release: `schedule` -> `Steering`
"""

from metastable.control.knobs import Knob
from metastable.control.search import Try
from metastable.control.steering import Steering, schedule
from metastable.control.tuning import Setting, temperature, tune

__all__ = ["Knob", "Setting", "Steering", "Try", "schedule", "temperature", "tune"]
