"""Attention inside documents against one masked attention over the window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn

from attnres_train.model import attention_core
from attnres_train.model.attention_core import CausalAttentionCore, attend_inside, has_varlen_kernel
from attnres_train.model.documents import Documents

SEGMENTS = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 1, 2], [0] * 8], dtype=torch.int32)
TOKENS, BATCH, WIDTH = 8, 3, 8


def inputs(groups: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    shapes = [(TOKENS, BATCH, heads, WIDTH) for heads in (4, groups, groups)]
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]


def masked(query: Tensor, key: Tensor, value: Tensor, segments: Tensor = SEGMENTS) -> Tensor:
    """The plain way: scores of the whole window, those of other documents and of later tokens at minus infinity."""
    allowed = (segments[:, :, None] == segments[:, None, :]).tril()[:, None]
    query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=0.3, enable_gqa=True)
    return output.permute(2, 0, 1, 3).flatten(2)


def core(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    documents = Documents.of(SEGMENTS)
    return CausalAttentionCore(None, softmax_scale=0.3)(query, key, value, documents)  # type: ignore[arg-type]


def as_the_kernel_would(query: Tensor, key: Tensor, value: Tensor, *lengths: Any, **options: Any) -> Tensor:
    """What `varlen_attn` documents, on the CPU: document by document from the bounds it is given."""
    bounds, same_bounds, longest, same_longest = lengths
    assert bounds is same_bounds and bounds.dtype == torch.int32
    assert longest == same_longest == int(bounds.diff().max())
    assert options.pop("window_size") == (-1, 0), "causal"
    outputs = []
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        document = (tensor[start:stop].transpose(0, 1) for tensor in (query, key, value))
        outputs.append(F.scaled_dot_product_attention(*document, is_causal=True, **options).transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("groups", [4, 2])
def test_whole_windows_see_no_later_token(groups: int) -> None:
    query, key, value = inputs(groups)
    whole = CausalAttentionCore(None, softmax_scale=0.3)(query, key, value, None)  # type: ignore[arg-type]
    expected = masked(query, key, value, torch.zeros_like(SEGMENTS))
    torch.testing.assert_close(whole, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("kernel", [False, True], ids=["one call a document", "the kernel's arguments"])
def test_attention_inside_documents_is_masked_attention(
    groups: int, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel:
        monkeypatch.setattr(attention_core, "has_varlen_kernel", lambda query: True)
        monkeypatch.setattr(attention_core, "varlen_attn", as_the_kernel_would)
    mine, theirs = inputs(groups), inputs(groups)
    output, expected = core(*mine), masked(*theirs)
    assert output.shape == (TOKENS, BATCH, 4 * WIDTH)
    assert torch.allclose(output, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (output * weights).sum().backward()
    (expected * weights).sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_documents_end_with_their_sample() -> None:
    documents = Documents.of(SEGMENTS)
    assert documents.lengths == (3, 1, 4, 7, 1, 8) and documents.longest == 8
    assert documents.bounds.tolist() == [0, 3, 4, 8, 15, 16, 24]


def test_gpus_in_half_precision_take_one_kernel_for_all_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors without data, through torch's own registration of the kernel: it takes our arguments."""
    called = []
    monkeypatch.setattr(attention_core, "varlen_attn", lambda *a, **k: called.append(k) or varlen_attn(*a, **k))
    with FakeTensorMode(), torch.no_grad():
        query, key = (torch.empty(24, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (4, 2))
        documents = Documents((3, 21), torch.empty(3, device="cuda", dtype=torch.int32))
        output = attend_inside(documents, query, key, key, scale=None)
        assert (output.shape, output.device.type, output.dtype) == (query.shape, "cuda", torch.bfloat16)
        assert called[0]["enable_gqa"]
        for width, dtype in ((64, torch.float32), (20, torch.bfloat16), (264, torch.bfloat16)):
            assert not has_varlen_kernel(torch.empty(24, 4, width, device="cuda", dtype=dtype))
        assert not has_varlen_kernel(torch.empty(24, 4, 64, dtype=torch.bfloat16))
