"""Pretrain decoder transformers whose residual connection is attention over depth."""

__version__ = "0.1.0"
