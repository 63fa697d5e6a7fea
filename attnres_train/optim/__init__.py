"""Parameter groups and learning-rate schedules; the optimizer itself is the engine's."""
