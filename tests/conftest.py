"""Hypothesis does not time examples: ranks of other tests share the cores."""

import pytest
from hypothesis import settings

settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nccl", action="store_true", help="tests of several ranks on GPUs, one a rank")
    parser.addoption("--nccl-rules", action="store_true", help="lay NCCL's rules over gloo in tests of several ranks")
