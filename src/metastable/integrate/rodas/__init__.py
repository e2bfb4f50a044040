"""Rodas5P with the triangular Jacobian of causal attention: horizons of any length. See `solver`."""

from metastable.integrate.rodas.prepare import DENSE_HORIZON as DENSE_HORIZON
from metastable.integrate.rodas.prepare import dense_horizon as dense_horizon
from metastable.integrate.rodas.prepare import dense_tokens as dense_tokens
from metastable.integrate.rodas.prepare import on_circle as on_circle
from metastable.integrate.rodas.prepare import one_sided as one_sided
from metastable.integrate.rodas.solver import JOINED as JOINED
from metastable.integrate.rodas.solver import LOGIT_SPREAD as LOGIT_SPREAD
from metastable.integrate.rodas.solver import RESTING as RESTING
from metastable.integrate.rodas.solver import SETTLED as SETTLED
from metastable.integrate.rodas.solver import SUPPORT as SUPPORT
from metastable.integrate.rodas.solver import begun as begun
from metastable.integrate.rodas.solver import chart_jacobian as chart_jacobian
from metastable.integrate.rodas.solver import check_range as check_range
from metastable.integrate.rodas.solver import horizon_refusal as horizon_refusal
from metastable.integrate.rodas.solver import member_solver as member_solver
from metastable.integrate.rodas.solver import refusal as refusal
from metastable.integrate.rodas.solver import solve as solve
