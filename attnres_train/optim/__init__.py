"""Learning-rate schedules and the rules of both sections; the optimizer itself is the engine's."""
