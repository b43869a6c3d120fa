"""The data flow of a trace: its nodes, its edges, and how much of it a flow chart shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

import attnshape
from attnshape.model.trace import Reference, TargetOutput, Trace
from attnshape.reporters.flow import Flow, flow_of, whole_flow
from attnshape.reporters.mermaid import MOST_CHARACTERS, picture, trace_mermaid
from attnshape.reporters.web.flow_data import flow_data
from tests.reporters import sample_traces
from tests.reporters.sample_pages import deep_model

PLENTY = 1000


def edges(flow: Flow) -> set[tuple[str, str, str]]:
    return {(flow.nodes[one.source].title, flow.nodes[one.target].title, one.signature) for one in flow.edges}


def titles(flow: Flow) -> list[str]:
    return [node.title for node in flow.nodes]


@cache
def encoder(layers: int) -> Trace:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    module = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    return attnshape.trace(module, inputs={"src": "B L 16"})


def test_multi_head_as_people_draw_it() -> None:
    flow = flow_of(attnshape.trace("multi-head"), PLENTY)
    assert titles(flow) == [
        *("input", "query", "key", "value", "scores", "weights", "context", "concat", "output", "output"),
    ]
    assert edges(flow) == {
        ("input", "query", "B L D"),
        ("input", "key", "B L D"),
        ("input", "value", "B L D"),
        ("query", "scores", "B H L Dk"),
        ("key", "scores", "B H Dk L"),
        ("scores", "weights", "B H L L"),
        ("weights", "context", "B H L L"),
        ("value", "context", "B H L Dk"),
        ("context", "concat", "B L H Dk"),
        ("concat", "output", "B L D"),
        ("output", "output", "B L D"),
    }


@pytest.mark.parametrize("most", [3, 12, 40, PLENTY])
def test_every_node_but_an_input_is_reached_from_one(most: int) -> None:
    flow = flow_of(encoder(3), most)
    assert len(flow.nodes) <= max(most, 3)
    reached = {place for place, node in enumerate(flow.nodes) if node.kind == "input"}
    for _ in flow.nodes:
        reached |= {edge.target for edge in flow.edges if edge.source in reached}
    assert reached == set(range(len(flow.nodes)))
    assert flow.nodes[-1].kind == "output"


def test_each_step_is_in_one_node() -> None:
    flow = flow_of(encoder(1), PLENTY)
    steps = [step for node in flow.nodes for step in node.steps]
    assert len(steps) == len(set(steps)) > 0


class _Repeated(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(6))
        self.head = nn.Linear(d_model, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        first, second = self.head(x).unbind(-1)[:2]
        return first + second


def test_what_follows_a_loop_is_not_repeated() -> None:
    trace = attnshape.trace(_Repeated, init="D", inputs={"x": "B L D"})
    nodes = whole_flow(trace).nodes
    repeated = {step for node in nodes if node.times for step in node.steps}
    assert {node.times for node in nodes} == {"", "×6"}
    assert repeated == {step for loop in trace.loops for step in range(loop.first, loop.last + 1)}


def test_a_node_has_the_names_of_all_its_results() -> None:
    def halves(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return left * right

    flow = whole_flow(attnshape.trace(halves, inputs={"x": "B 2*D"}))
    assert titles(flow) == ["x", "left, right", "left * right", "output"]


def test_layer_norm_is_one_node() -> None:
    flow = flow_of(encoder(1), PLENTY)
    assert sum("layer_norm" in node.does or "LayerNorm" in node.does for node in flow.nodes) == 2


def test_a_whole_layer_fits_a_comment() -> None:
    chart = trace_mermaid(encoder(1))
    assert len(chart) <= MOST_CHARACTERS
    assert "fused attention" in chart


@pytest.mark.parametrize("name", ["latent", "partial-rotary"])
def test_a_mechanism_is_more_than_a_node(name: str) -> None:
    chart = trace_mermaid(attnshape.trace(name))
    assert len(chart) <= MOST_CHARACTERS
    assert '{{"weights<br>' in chart


def test_chart_of_many_steps_is_cut_down() -> None:
    def many(x: Tensor) -> Tensor:
        parts = [torch.softmax(x[:, place] @ x[:, place].mT, -1) @ x[:, place] for place in range(60)]
        return torch.stack(parts, 1)

    with attnshape.record(sizes={"B": 2}) as recording:
        many(torch.ones(2, 60, 3, 5))
    assert len(trace_mermaid(recording.trace)) <= MOST_CHARACTERS


def test_picture_is_a_fence_in_details() -> None:
    lines: Sequence[str] = picture(sample_traces.multi_head()).splitlines()
    assert lines[0] == "<details><summary>data flow</summary>"
    assert lines[2:4] == ["```mermaid", "flowchart TD"]
    assert [line for line in lines[3:] if line.startswith("```")] == ["```"]
    assert lines[-1] == "</details>"


def test_nodes_are_declared_before_edges_name_them() -> None:
    text = trace_mermaid(sample_traces.multi_head())
    declared = set(re.findall(r"^  (n\d+)[\[({]", text, re.MULTILINE))
    named = set(re.findall(r"\bn\d+(?= --)|(?<=--> )n\d+", text))
    assert named <= declared


def test_many_outputs_of_one_kind_are_one_node() -> None:
    whole = sample_traces.multi_head()
    names = [f"past[{number}]" for number in range(5)]
    caches = tuple(TargetOutput(name, Reference(step=3)) for name in names)
    trace = replace(whole, outputs=(*whole.outputs, *caches))
    drawn = [(node.title, node.times) for node in whole_flow(trace).nodes if node.kind == "output"]
    assert drawn == [("output", ""), ("past[0] … past[4]", "×5")]
    few = replace(whole, outputs=(*whole.outputs, *caches[:3]))
    assert [node.title for node in whole_flow(few).nodes if node.kind == "output"] == ["output", *names[:3]]


def test_a_node_is_in_the_module_that_all_its_steps_are_in() -> None:
    modules = {node.title: node.module for node in whole_flow(sample_traces.multi_head()).nodes}
    # the projection is in Wq, what splits its result isn't
    assert modules["query"] == ""
    layers = {node.title: node.module for node in whole_flow(encoder(2)).nodes}
    assert {module.partition(".")[0] for module in layers.values()} == {"", "layers"}


def folded(trace: Trace) -> tuple[list[str], dict[str, Any]]:
    texts: list[str] = []

    def text(one: str) -> int:
        texts.append(one)
        return len(texts) - 1

    return texts, flow_data(whole_flow(trace), text)


def test_modules_are_folds_around_their_nodes() -> None:
    trace = deep_model(3)
    texts, data = folded(trace)
    titles = [texts[fold[0]] for fold in data["folds"]]
    assert titles == ["layers", "layers.0.attn", "layers.1.attn", "layers.2.attn"]
    assert [fold[1] for fold in data["folds"]] == [-1, 0, 0, 0]
    assert texts[data["folds"][1][3]] == "18 steps, with attention"
    inside = {place: {fold for *_, steps, fold in data["nodes"] if place in steps} for place in (1, 18, 19, 54)}
    assert inside == {1: {1}, 18: {1}, 19: {2}, 54: {3}}
    assert sorted(step for *_, steps, _ in data["nodes"] for step in steps) == [step.index for step in trace.steps]


@pytest.mark.parametrize("layers", [40, 41, 900])
def test_no_fold_has_too_many_parts(layers: int) -> None:
    _, data = folded(deep_model(layers))
    parts = Counter([fold[1] for fold in data["folds"]] + [node[5] for node in data["nodes"]])
    assert max(parts.values()) <= 40
    # a fold comes after that around it
    assert all(parent < place for place, (_, parent, *_) in enumerate(data["folds"]))
