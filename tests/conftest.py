"""Hypothesis does not time examples: ranks of other tests share the cores."""

from hypothesis import settings

settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")
