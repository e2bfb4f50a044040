"""Integrators: `tsit5` (explicit), `rodas` (implicit, triangular), `layers` (discrete depth), `sde` (noise)."""
