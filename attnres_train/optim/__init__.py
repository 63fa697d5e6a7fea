"""Learning-rate schedules; the optimizer itself is the engine's."""
