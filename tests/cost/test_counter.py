"""What is counted of each step: in views, copies, hidden copies, caches, other threads of torch, odd tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnshape.cost.counter import OperationCounter, record_counted
from attnshape.tracing.raw import RawCost, RawTrace
from attnshape.tracing.runner import Runnable, build_and_record

F = 4
"""The bytes of a float32."""


def counted(function: Callable[..., Any], *args: Any, grad: bool = True) -> RawTrace:
    """Return the recording of a call with what its steps cost."""

    def record(counter: OperationCounter) -> RawTrace:
        def build() -> Runnable:
            runnable = Runnable(function, args)
            made = (runnable.named_inputs(), runnable.named_parameters())
            counter.mark_built(*([tensor for _, tensor in named] for named in made))
            return runnable

        return build_and_record(build, 0, grad, counter.mark_step)

    return record_counted(record, grad)


def costs(function: Callable[..., Any], *args: Any, grad: bool = True) -> list[RawCost]:
    """Return what each step cost."""
    raw = counted(function, *args, grad=grad)
    assert raw.failure is None, raw.failure.error
    found = [step.cost for step in raw.steps]
    assert None not in found
    return [cost for cost in found if cost is not None]


def test_view_moves_and_makes_nothing() -> None:
    assert costs(lambda x: x.view(6).unsqueeze(0), torch.ones(2, 3)) == [RawCost(), RawCost()]


def test_copy_is_read_and_written() -> None:
    (_, copy) = costs(lambda x: x.t().contiguous(), torch.ones(2, 3))
    assert copy == RawCost(moved=(6 * F, 6 * F))


def test_hidden_copies_of_a_product_are_temporary_and_saved() -> None:
    heads = torch.ones(2, 5, 3, 4).transpose(1, 2)
    (_, product) = costs(lambda q: q @ q.mT, heads)
    assert product.products == product.flops == (2 * 2 * 3 * 5 * 5 * 4,)
    assert product.temporary == (2 * 3 * 5 * 4 * F,) * 2
    assert product.saved == (2 * 3 * 5 * 4 * F,) * 2


def test_broadcast_groups_make_a_copy_of_the_keys_for_each_head() -> None:
    (product,) = costs(lambda q, k: q @ k, torch.ones(2, 3, 5, 4), torch.ones(2, 1, 4, 7))
    assert product.temporary == (2 * 3 * 4 * 7 * F,)


def test_parameters_are_not_saved() -> None:
    first, second = costs(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)), torch.ones(2, 3))[-2:]
    assert first.saved == (2 * 3 * F,)
    assert second.saved == (2 * 4 * F,)


def test_input_is_saved_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(x), self.other(x)

    first, second = costs(Two(), torch.ones(2, 3))
    assert first.saved == (2 * 3 * F,)
    assert second.saved == ()


def test_what_would_be_saved_is_unknown_without_gradients() -> None:
    (softmax,) = costs(lambda x: x.softmax(-1), torch.ones(2, 3), grad=False)
    assert softmax.saved is None


def test_embedding_reads_the_rows_of_its_tokens() -> None:
    (lookup,) = costs(nn.Embedding(1000, 3), torch.zeros(2, dtype=torch.long))
    assert lookup.moved == (2 * 3 * F, 2 * 8, 2 * 3 * F)


def test_writing_to_a_cache_moves_what_is_written() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(100, 3))

        def forward(self, x: Tensor) -> Tensor:
            self.keys[:2] = x
            return x + 1

    write, _ = costs(Cache(), torch.ones(2, 3), grad=False)
    assert write.moved == (2 * 3 * F, 2 * 3 * F)
    assert write.temporary == ()


def test_random_numbers_are_written_and_not_read() -> None:
    (_, drawn) = costs(lambda x: torch.empty_like(x).normal_(), torch.ones(2, 3), grad=False)
    assert drawn.moved == (2 * 3 * F,)


def test_weights_that_a_mask_sets_to_0_are_counted() -> None:
    causal = torch.ones(4, 4, dtype=torch.bool).tril()

    def eager(scores: Tensor) -> Tensor:
        return scores.masked_fill(~causal, -torch.inf).softmax(-1)

    assert [(cost.weights, cost.needless) for cost in costs(eager, torch.ones(2, 4, 4))] == [(0, 0), (0, 0), (32, 12)]
    attend = torch.nn.functional.scaled_dot_product_attention
    q = torch.ones(1, 2, 4, 3)
    for options in ({"is_causal": True}, {"attn_mask": causal}):
        (fused,) = costs(lambda q, options=options: attend(q, q, q, **options), q)
        assert (fused.weights, fused.needless) == (32, 12)


def test_backward_pass_inside_is_counted() -> None:
    def gradient(x: Tensor) -> Tensor:
        (result,) = torch.autograd.grad((x @ x).sum(), x)
        return result

    total = counted(gradient, torch.ones(3, 3)).cost
    assert total is not None
    # the product, and one for the gradient of each operand
    assert total.products == (54, 54, 54)
    assert total.unknown == ()


def test_vmap_is_counted_over_the_hidden_axis() -> None:
    total = counted(torch.vmap(lambda row: row.exp() * 2), torch.ones(5, 3)).cost
    assert total is not None
    assert total.flops == (15, 15)


def test_torch_func_leaves_unknown_what_is_saved() -> None:
    raw = counted(lambda x: torch.func.grad(lambda y: (y * y).sum())(x), torch.ones(3))
    assert raw.failure is None
    assert raw.cost is not None
    assert raw.cost.saved is None
    assert raw.cost.flops is not None


def test_sparse_and_nested_tensors_are_unknown_and_not_0() -> None:
    raw = counted(lambda x: torch.sparse.mm(x.to_sparse(), x), torch.eye(3), grad=False)
    assert raw.failure is None
    assert raw.cost is not None
    assert raw.cost.flops is None
    assert raw.cost.moved is None
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    raw = counted(lambda x: x * 2, nested, grad=False)
    assert raw.failure is None
    assert raw.cost is not None
    assert raw.cost.flops is None


def test_quantised_tensors_do_not_end_the_run() -> None:
    quantised = torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)
    assert counted(lambda x: x.dequantize(), quantised, grad=False).failure is None


def test_step_before_a_failure_is_counted() -> None:
    raw = counted(lambda x: (x + 1) @ torch.ones(7), torch.ones(2, 3))
    assert raw.failure is not None
    assert raw.steps[0].cost == RawCost(flops=(6,), moved=(6 * F, 6 * F))


def test_results_are_the_same_bits_as_without_counting() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(2, 3, 8)
    torch.manual_seed(1)
    expected = module(x, x, x)[0]
    torch.manual_seed(1)
    with OperationCounter():
        found = module(x, x, x)[0]
    assert torch.equal(found, expected)


def test_counter_keeps_no_tensor_alive() -> None:
    with OperationCounter() as counter:
        counter.mark_built([], [])
        one = torch.ones(3, requires_grad=True)
        two = one.exp()
        kept = torch.multiprocessing.reductions.StorageWeakRef(two.untyped_storage())
        counter.mark_step([two])
        del two
    assert kept.expired()
