"""What `visible` claims, in other layouts and combinations than the mutants have; and hidden keys without a claim."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attnshape
from attnshape.model.report import Report
from tests.mutants.pairs.as410 import RightShifted, WrongShifted, partition

SIZES = {"B": 3, "H": 5, "L": 12, "Dk": 4, "W": 3}


def attend(q, k, v, keep=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
    return scores.softmax(-1) @ v


def qkv(B, H, L, Dk):
    return tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def checked(case, *claims: str, **sizes: int) -> Report:
    return attnshape.check(case, claims=claims, **{**SIZES, **sizes})


def errors(report: Report) -> list[str]:
    return [finding.code for finding in report.findings if finding.level == "error"]


def undecided(report: Report) -> dict[str, str]:
    return {one.what: one.why for one in report.undecided}


def prompt(B, H, L, Dk, W):
    def call(q, k, v, width):
        i = torch.arange(q.shape[2])
        return attend(q, k, v, (i <= i[:, None]) | (i < width))

    return call, (*qkv(B, H, L, Dk), W)


def prompt_too_long(B, H, L, Dk, W):
    def call(q, k, v, width):
        i = torch.arange(q.shape[2])
        return attend(q, k, v, (i <= i[:, None]) | (i <= width))

    return call, (*qkv(B, H, L, Dk), W)


@pytest.mark.parametrize(
    "claim",
    ["visible=k <= q or k < W", "visible=not (q < k and k >= W)", "visible=0 <= q - k or 0 <= k < W"],
)
def test_conditions_in_several_forms(claim):
    assert errors(checked(prompt_too_long, claim)) == ["AS506"]
    report = checked(prompt, claim)
    assert report.counting == report.undecided == ()
    assert f"each query sees exactly the keys that {claim} shows" in report.verified
    assert "AS408" not in {finding.code for finding in report.findings}


@pytest.mark.parametrize(("added", "leaves"), [(-100.0, False), (-2.0, True)])
def test_scores_that_get_a_number_added_are_hidden_if_no_weight_is_left(added, leaves):
    def case(B, H, L, Dk, W):
        def call(q, k, v):
            i = torch.arange(q.shape[2])
            scores = q @ k.mT / q.shape[-1] ** 0.5 + added * (i > i[:, None])
            return scores.softmax(-1) @ v

        return call, qkv(B, H, L, Dk)

    assert ("AS506" in errors(checked(case, "visible=k <= q"))) == leaves


def test_every_claim_must_leave_a_key():
    def both(width, back):
        def case(B, H, L, Dk, W):
            def call(q, k, v):
                i = torch.arange(q.shape[2])
                distance = i[:, None] - i
                return attend(q, k, v, (distance >= 0) & (distance < back) & (distance % width == 0))

            return call, qkv(B, H, L, Dk)

        return case

    claims = ("causal", "window=5", "visible=(q - k) % 2 == 0")
    report = checked(both(2, 5), *claims)
    assert report.counting == report.undecided == ()
    assert any(text.endswith("and the other claims leave") for text in report.verified)
    assert errors(checked(both(1, 5), *claims)) == ["AS506"]
    assert errors(checked(both(2, 7), *claims)) == ["AS505"]
    assert errors(checked(both(2, 3), *claims)) == ["AS505"]


@pytest.mark.parametrize(("shift", "expected"), [(0, []), (1, ["AS506"])])
def test_tokens_that_have_queries_are_no_cached_ones(shift, expected):
    def case(B, H, Lk, Lp, Dk):
        """Steps to predict attend to those that are known, in front of them, and to each other."""

        def predict(known, steps):
            keys = torch.cat((known, steps), dim=2)
            keep = torch.ones(steps.shape[2], keys.shape[2], dtype=torch.bool).tril(known.shape[2] + shift)
            return attend(steps, keys, keys, keep)

        return predict, (torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lp, Dk))

    report = attnshape.check(case, claims=["visible=k <= q + Lk"], B=2, H=4, Lk=7, Lp=5, Dk=3)
    assert errors(report) == expected
    assert report.undecided == ()


def shifted(cls):
    def case(B, H, Dk, W):
        return cls(H * Dk, H, W), (torch.randn(B, 2 * W, 3 * W, H * Dk),)

    return case


REGIONS = (
    "visible=(q // (3*W) - W//2) // W == (k // (3*W) - W//2) // W"
    " and (q % (3*W) - W//2) // W == (k % (3*W) - W//2) // W"
)


def test_map_may_be_round_along_one_axis():
    class Globe(RightShifted):
        def same_region(self, Y, X):
            rows = (torch.arange(Y) >= Y - self.shift)[:, None].expand(Y, X)
            regions = partition(rows[None, :, :, None], self.window).squeeze(-1)
            return regions[:, :, None] == regions[:, None, :]

    report = checked(shifted(Globe))
    assert [found.code for found in report.findings if found.level == "notice"] == ["AS408", "AS410"]
    assert errors(report) == []


@pytest.mark.slow
def test_shifted_windows_of_a_map():
    report = checked(shifted(RightShifted), REGIONS)
    assert report.counting == report.undecided == ()
    assert any(text.startswith("each query sees exactly") for text in report.verified)
    assert errors(checked(shifted(WrongShifted), REGIONS)) == ["AS506"]


def test_windows_across_the_edge_may_be_claimed():
    def case(B, H, Dk, W):
        def call(q, k, v, width):
            rolled = (t.roll(-(width // 2), 2).unflatten(2, (-1, width)) for t in (q, k, v))
            return attend(*rolled).flatten(2, 3).roll(width // 2, 2)

        return call, (*qkv(B, H, 3 * W, Dk), W)

    report = checked(case, "visible=(q - W//2) % (3*W) // W == (k - W//2) % (3*W) // W")
    assert report.findings == ()
    assert report.undecided == ()


class Decoder(nn.Module):
    """A decoder's layer: its own tokens causally, then all of the memory."""

    def __init__(self, width, heads, offset):
        super().__init__()
        self.heads, self.offset = heads, offset
        self.own, self.other, self.memory = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
        )

    def split(self, t, parts):
        return t.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x, memory):
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(self.offset)
        x = x + attend(*self.split(self.own(x), 3), keep).transpose(1, 2).flatten(2)
        return x + attend(*self.split(self.other(x), 1), *self.split(self.memory(memory), 2)).transpose(1, 2).flatten(2)


def decoder(offset):
    def case(B, H, Lq, Lk, Dk):
        return Decoder(H * Dk, H, offset), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk))

    return case


def test_memory_of_a_decoder_is_left_out():
    sizes = {"B": 3, "H": 5, "Lq": 7, "Lk": 11, "Dk": 4}
    report = attnshape.check(decoder(0), claims=["visible=k <= q"], **sizes)
    assert errors(report) == []
    assert report.undecided == ()
    assert errors(attnshape.check(decoder(1), claims=["visible=k <= q"], **sizes)) == ["AS506"]


def test_second_layer_is_judged_by_its_own_tokens():
    class Layers(nn.Module):
        def __init__(self, width, heads, windows):
            super().__init__()
            self.heads, self.windows = heads, windows
            self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in windows)

        def forward(self, x):
            for layer, window in zip(self.layers, self.windows, strict=True):
                q, k, v = layer(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
                i = torch.arange(x.shape[1])
                x = x + attend(q, k, v, (i[:, None] - i).abs() < window).transpose(1, 2).flatten(2)
            return x

    def layers(*windows):
        def case(B, H, L, Dk):
            return Layers(H * Dk, H, windows), (torch.randn(B, L, H * Dk),)

        return case

    report = checked(layers(3, 3), "visible=abs(q - k) < 3")
    assert report.counting == report.undecided == ()
    assert errors(checked(layers(3, 4), "visible=abs(q - k) < 3")) == ["AS506"]


def decoded(reach):
    def case(B, H, L, Dk):
        def call(q, k, v):
            steps = []
            for t in range(q.shape[2]):
                start = max(0, t + 1 - reach)
                steps.append(attend(q[:, :, t : t + 1], k[:, :, start : t + 1], v[:, :, start : t + 1]))
            return torch.cat(steps, 2)

        return call, qkv(B, H, L, Dk)

    return case


def test_steps_of_a_loop_that_decodes():
    report = checked(decoded(3), "visible=0 <= q - k < 3", L=7)
    assert report.counting == report.undecided == ()
    assert errors(checked(decoded(4), "visible=0 <= q - k < 3", L=7)) == ["AS506"]
    assert errors(checked(decoded(2), "visible=0 <= q - k < 3", L=7)) == ["AS506"]


def test_what_inputs_hide_without_a_claim_leaves_it_undecided():
    def case(B, H, L, Dk):
        def call(q, k, v, lengths):
            i = torch.arange(q.shape[2])
            return attend(q, k, v, (i <= i[:, None]) & (i < lengths[:, None, None, None]))

        return call, (*qkv(B, H, L, Dk), L - torch.arange(B) % 3)

    report = checked(case, "visible=k <= q")
    assert errors(report) == []
    assert undecided(report) == {
        "the claim visible=k <= q": "lengths also decides which keys are hidden, and no claim says how"
    }


def test_chosen_keys_are_not_said_to_be_exactly_those_of_the_claim():
    def case(B, H, L, Dk):
        def call(q, k, v):
            i = torch.arange(q.shape[2])
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(i > i[:, None], -torch.inf)
            least = scores.topk(3, -1).values[..., -1:]
            return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v

        return call, qkv(B, H, L, Dk)

    report = checked(case, "visible=k <= q")
    assert errors(report) == []
    assert report.undecided == ()
    assert "no query sees a key that visible=k <= q hides" in report.verified


def test_keys_of_the_largest_scores_leave_it_undecided():
    def case(B, H, L, Dk):
        def call(q, k, v):
            scores = q @ k.mT / q.shape[-1] ** 0.5
            largest = scores.topk(3, -1).indices
            hidden = torch.ones_like(scores).scatter(-1, largest, 0.0)
            return scores.masked_fill(hidden.bool(), -torch.inf).softmax(-1) @ v

        return call, qkv(B, H, L, Dk)

    report = checked(case, "visible=k < L")
    assert errors(report) == []
    assert "also decides which keys are hidden" in undecided(report)["the claim visible=k < L"]


def test_heads_that_differ_leave_it_undecided():
    def case(B, H, L, Dk):
        def call(q, k, v):
            i = torch.arange(q.shape[2])
            distance = i[:, None] - i
            return attend(q, k, v, (distance >= 0) & (distance <= torch.arange(1, q.shape[1] + 1)[:, None, None]))

        return call, qkv(B, H, L, Dk)

    report = checked(case, "visible=0 <= q - k <= H")
    assert errors(report) == []
    assert "in some heads" in undecided(report)["the claim visible=0 <= q - k <= H"]
    assert errors(checked(case, "visible=0 <= q - k < 2")) == ["AS506"]


def test_sums_over_gates_are_judged_by_the_results():
    def gated(width):
        def case(B, L, D):
            def call(x):
                past = F.pad(x, (0, 0, width - 1, 0)).unfold(1, width, 1)
                return x * past.sum(-1)

            return call, (torch.randn(B, L, D),)

        return case

    sizes = {"B": 3, "L": 12, "D": 5}
    report = attnshape.check(gated(3), claims=["visible=0 <= q - k < 3"], **sizes)
    assert errors(report) == []
    assert report.undecided == ()
    assert errors(attnshape.check(gated(2), claims=["visible=0 <= q - k < 3"], **sizes)) == ["AS506"]


def cached(mask):
    def case(B, H, Lp, L, Dk):
        def call(q, k, v, past_k, past_v):
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
            return attend(q, k, v, mask(q.shape[2], k.shape[2]))

        return call, (*qkv(B, H, L, Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk))

    return case


def test_corner_of_a_mask_for_cached_keys_is_no_convention():
    sizes = {"Lp": 8, "L": 7}
    wrong = checked(cached(lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool).tril()), **sizes)
    assert errors(wrong) == ["AS503"]
    right = checked(
        cached(lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)), **sizes
    )
    assert errors(right) == []


def test_top_left_corner_is_one_for_other_tokens():
    def case(B, H, Lq, Lk, Dk):
        def call(q, k, v):
            return attend(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril())

        return call, tuple(torch.randn(B, H, length, Dk) for length in (Lq, Lk, Lk))

    assert errors(attnshape.check(case, B=3, H=5, Lq=7, Lk=11, Dk=4)) == []


def of_heads(repeat):
    def case(B, H, L, Dk):
        def call(q, k, v):
            i = torch.arange(q.shape[2])
            keep = (i[:, None] - i).abs() <= torch.arange(1, q.shape[1] + 1)[:, None, None]
            out = attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), repeat(keep, q.shape[0]))
            return out.unflatten(0, q.shape[:2])

        return call, qkv(B, H, L, Dk)

    return case


def test_masks_of_heads_in_the_order_of_another_folding():
    assert errors(checked(of_heads(lambda keep, batch: keep.repeat_interleave(batch, 0)))) == ["AS403"]
    assert errors(checked(of_heads(lambda keep, batch: keep.repeat(batch, 1, 1)))) == []


def blocks(fill):
    def case(B, H, L, Dk, W):
        def call(q, k, v, width):
            block = torch.arange(q.shape[2]) // width
            added = torch.zeros(len(block), len(block)).masked_fill(block[:, None] != block, fill)
            return (q @ k.mT / q.shape[-1] ** 0.5 + added.to(q.dtype)).softmax(-1) @ v

        return call, (*qkv(B, H, L, Dk), W)

    return case


def test_numbers_that_leave_no_weight_beside_scores_hide_the_keys_of_a_claim():
    claim = "visible=q // W == k // W"
    assert errors(checked(blocks(-100.0), claim)) == []
    assert errors(checked(blocks(-5.0), claim)) == ["AS405", "AS506"]


def fused(qkv):
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def test_positions_count_tokens_and_not_their_parts():
    inputs = {"qkv": "B L 3 H Dk"}
    assert errors(attnshape.check(fused, inputs=inputs, claims=["visible=k <= q"])) == []
    assert errors(attnshape.check(fused, inputs=inputs, claims=["visible=k < q"])) == ["AS506"]


def test_notice_names_the_claim_that_settles_it():
    (notice,) = checked(prompt).findings
    assert (notice.code, notice.level) == ("AS408", "notice")
    assert "visible=k <= q or k < W" in notice.hint

    def apart(B, H, L, Dk):
        def call(q, k, v):
            return attend(q, k, v, ~torch.eye(q.shape[2], dtype=torch.bool))

        return call, qkv(B, H, L, Dk)

    (notice,) = checked(apart).findings
    assert "queries don't see the key of their own position" in notice.message
    assert checked(apart, "visible=q != k").findings == ()


def with_memory(further: int):
    """Return a case whose keys are those of a memory, then those of the tokens."""

    def case(B, H, L, Dk, M):
        def call(q, k, v, memory_k, memory_v):
            keys, values = torch.cat((memory_k, k), 2), torch.cat((memory_v, v), 2)
            i, j = torch.arange(q.shape[2]), torch.arange(keys.shape[2])
            return attend(q, keys, values, j <= i[:, None] + memory_k.shape[2] + further)

        return call, (*qkv(B, H, L, Dk), *qkv(B, H, M, Dk)[:2])

    return case


def test_keys_of_a_memory_are_counted_before_those_of_the_tokens():
    sizes = {"B": 3, "H": 5, "L": 12, "Dk": 4, "M": 7}
    report = attnshape.check(with_memory(0), claims=["visible=k <= q + M"], **sizes)
    assert report.counting == report.undecided == ()
    assert "each query sees exactly the keys that visible=k <= q + M shows" in report.verified
    assert errors(attnshape.check(with_memory(1), claims=["visible=k <= q + M"], **sizes)) == ["AS506"]


def padded_chunks(before: int):
    """Return a case in which each chunk sees itself and some chunks before it, as far as the lengths reach."""

    def case(B, H, L, Dk, C):
        def call(q, k, v, lengths, chunk):
            chunks = torch.arange(q.shape[2]) // chunk
            back = chunks[:, None] - chunks
            real = torch.arange(q.shape[2]) < lengths[:, None]
            keep = (back >= 0) & (back <= before) & real[:, None, None]
            # the rows of padding may have no key
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep, -1e9)
            return scores.softmax(-1) @ v

        return call, (*qkv(B, H, L, Dk), torch.randint(1, L + 1, (B,)), C)

    return case


def test_tokens_beyond_a_claimed_length_are_not_judged():
    sizes, claims = {"B": 3, "H": 5, "L": 12, "Dk": 4, "C": 3}, ["lengths=length", "visible=0 <= q//C - k//C <= 1"]
    assert errors(attnshape.check(padded_chunks(0), claims=claims, **sizes)) == ["AS506"]
    report = attnshape.check(padded_chunks(1), claims=claims, **sizes)
    assert report.counting == ()
    assert report.claim_outcomes[claims[1]] == "verified"


def test_sizes_are_chosen_at_which_the_claim_hides_keys():
    def case(B, H, L, Dk, C):
        def call(q, k, v, chunk):
            chunks = torch.arange(q.shape[2]) // chunk
            return attend(q, k, v, chunks[:, None] == chunks)

        return call, (*qkv(B, H, L, Dk), C)

    report = attnshape.check(case, claims=["visible=q//C == k//C"], B=3, H=5, L=12, Dk=4, C=3)
    assert report.small_sizes[0]["C"] < report.small_sizes[0]["L"]
    assert report.counting == report.undecided == ()


def test_claim_that_hides_no_key_is_undecided():
    def case(B, H, L, Dk):
        return attend, qkv(B, H, L, Dk)

    report = attnshape.check(case, claims=["visible=k < q + L"], B=3, H=5, L=12, Dk=4)
    assert set(undecided(report)) == {"the claim visible=k < q + L"}
