// What the page shows of one step beside its row: source, explanation, result, cost, memory layout.

"use strict";

const STEP = [
  "expression", "operation", "role", "module", "place", "excerpt", "explanation", "operands", "outputs", "arguments", "cost",
  "remarks", "before", "parent",
];
const STEP_TEXTS = ["operation", "role", "module", "place"];
const COST_NAMES = ["FLOPs", "bytes moved", "temporary", "saved for backward"];

const MOST_SIBLINGS = 6;
const MARGIN_OF_MARK = 24;

/** Return a step of the data under the names of its fields. */
function namedStep(values, numbers) {
  const step = Object.fromEntries(STEP.map((name, place) => [name, values[place]]));
  for (const name of STEP_TEXTS) step[name] = numbers.text(step[name]);
  step.operands = step.operands.map(([label, made, tensor]) => ({ label: numbers.text(label), made, tensor }));
  step.outputs = step.outputs.map(([name, tensor, storage, allocated]) => (
    { name: numbers.text(name), tensor, storage: numbers.text(storage), isAllocated: allocated === 1 }
  ));
  return step;
}

class StepDetails {
  constructor(page, data) {
    this.page = page;
    this.lines = data.lines;
    this.heading = element("h3", { tabindex: -1 });
    this.content = element("div", { class: "content" });
    this.close = element("button", { class: "close", "aria-label": "close the details", onclick: () => page.deselect() }, "×");
    this.frame = element("aside", { class: "details", "aria-label": "details of a step", hidden: true },
      element("div", { class: "bar" }, this.heading, this.close), this.content);
  }

  /** Show a step, and the other steps of the node that was clicked. */
  show(number, node) {
    const { page } = this;
    const { numbers, symbols } = page;
    const step = page.steps[number - 1];
    const names = step.outputs.map((output) => output.name).filter(Boolean).join(", ");
    this.heading.replaceChildren(`Step ${number}`, names === "" ? "" : element("span", { class: "name" }, ` ${names}`));
    const chips = [step.role, step.operation, step.module].map((text, place) => (
      text === "" ? null : element("span", { class: place === 0 ? "chip role" : "chip" }, text)
    ));
    this.content.replaceChildren(...[
      node !== null && node.steps.length > 1 ? this.siblings(number, node) : null,
      element("p", { class: "chips" }, chips, element("button", { class: "chip", onclick: () => page.goTo(number, node) }, "row in the table")),
      this.source(step),
      element("p", { class: "explanation" }, numbers.text(step.explanation)),
      ...step.remarks.map((remark) => element("p", { class: "remark" }, symbols.parts(numbers.text(remark)))),
      this.results(step),
      this.operands(step),
      this.cost(step),
      step.before >= 0 ? new MemoryLayout(page, step).section() : null,
    ].filter((part) => part !== null));
    this.frame.hidden = false;
    this.content.scrollTop = 0;
    const mark = this.content.querySelector("mark");
    if (mark === null) return;
    const lines = mark.closest("pre");
    // as little as shows the end of the mark, but its beginning in any case
    const end = mark.offsetLeft + mark.offsetWidth;
    lines.scrollLeft = Math.min(end - lines.clientWidth, mark.offsetLeft - MARGIN_OF_MARK);
  }

  /** Show an input, or another node that is no step. */
  showTensor(name, tensor) {
    this.heading.replaceChildren(name);
    const text = tensor === null ? "What the run returns." : "An input of the run.";
    const output = { name, tensor, storage: "" };
    this.content.replaceChildren(element("p", { class: "explanation" }, text),
      ...(tensor === null ? [] : [this.tensor(output)]));
    this.frame.hidden = false;
  }

  siblings(number, node) {
    // of a folded model only those near to the step are listed
    const from = Math.max(0, Math.min(node.steps.indexOf(number) - MOST_SIBLINGS / 2, node.steps.length - MOST_SIBLINGS));
    const near = node.steps.slice(from, from + MOST_SIBLINGS);
    const left = node.steps.length - near.length;
    const buttons = near.map((step) => {
      const label = this.page.numbers.text(this.page.steps[step - 1].expression);
      return element("li", {}, element("button", {
        class: "step-link", "aria-current": step === number ? "step" : null, onclick: () => this.page.select(step, node),
      }, element("span", { class: "index" }, String(step)), " ", element("code", {}, label)));
    });
    return element("nav", { "aria-label": "steps of this part" }, element("ol", { class: "siblings" }, buttons,
      left > 0 ? element("li", { class: "hint" }, `and ${grouped(String(left))} more steps in this part`) : null));
  }

  source(step) {
    const { numbers } = this.page;
    const place = step.place === "" ? null : element("figcaption", {}, step.place);
    if (step.excerpt === -1) {
      return element("figure", { class: "source" }, place, element("pre", { tabindex: 0 }, numbers.text(step.expression)));
    }
    const [lines, ...flat] = step.excerpt;
    const [first, texts] = this.lines[lines];
    const marks = new Map();
    for (let at = 0; at < flat.length; at += 3) marks.set(flat[at], [flat[at + 1], flat[at + 2]]);
    return element("figure", { class: "source" }, place,
      element("pre", { tabindex: 0 }, sourceLines(first, texts.map((text) => numbers.text(text)), marks)));
  }

  results(step) {
    return element("section", {}, step.outputs.length > 1 ? element("h4", {}, `${step.outputs.length} results`) : null,
      step.outputs.slice(0, 12).map((output) => this.tensor(output)));
  }

  tensor(output) {
    const { numbers, symbols, sizes } = this.page;
    const tensor = numbers.tensors[output.tensor];
    const at = !sizes.changed ? [numbers.text(tensor.shape), numbers.text(tensor.stride)]
      : !sizes.valid ? ["–", "–"] : [formatShape(numbers.shape(tensor)), formatShape(numbers.strides(tensor))];
    const strides = tensor.strides.map((stride) => numbers.formula(stride)).join("  ");
    const storage = output.storage.startsWith("new ") && sizes.changed && sizes.valid
      ? `new ${formatBytes(numbers.bytes(tensor))}` : output.storage;
    const facts = [
      ["signature", symbols.code(numbers.text(tensor.signature))],
      ["shape", at[0]],
      ["stride", tensor.strides.length === 0 ? at[1] : [at[1], element("span", { class: "hint" }, " = "), symbols.code(strides)]],
      ["storage", storage],
      ["dtype", numbers.text(tensor.dtype)],
      ["known", numbers.text(tensor.known)],
    ].filter(([, value]) => value !== "");
    return element("dl", { class: "facts" }, output.name === "" ? null : [element("dt", {}, "name"), element("dd", {}, element("code", {}, output.name))],
      facts.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }

  operands(step) {
    const { numbers, symbols } = this.page;
    if (step.operands.length === 0 && step.arguments.length === 0) return null;
    const read = step.operands.slice(0, 12).map((operand) => {
      const label = operand.made > 0 ? `step ${operand.label}` : operand.label;
      const shown = operand.made > 0
        ? element("button", { class: "step-link", onclick: () => this.page.goTo(operand.made) }, label) : element("code", {}, label);
      const signature = operand.tensor >= 0 ? symbols.code(numbers.text(numbers.tensors[operand.tensor].signature)) : null;
      return element("li", {}, shown, " ", signature);
    });
    const given = step.arguments.map((argument) => element("li", {}, symbols.code(numbers.text(argument))));
    return element("section", {}, element("h4", {}, "Reads"), element("ul", { class: "reads" }, read, given));
  }

  cost(step) {
    const { numbers, symbols, sizes } = this.page;
    if (step.cost.every((place) => place < 0)) {
      return this.page.hasCosts ? null : element("p", { class: "hint" }, "Costs weren’t counted: add ", element("code", {}, "--cost"), " to the command.");
    }
    const facts = COST_NAMES.map((name, place) => {
      if (step.cost[place] < 0) return null;
      const number = sizes.valid ? numbers.quantity(step.cost[place]) : NaN;
      const shown = formatCost(number, place > 0);
      const formula = numbers.formula(step.cost[place]);
      return [element("dt", {}, name), element("dd", {}, shown, /^\d*$/.test(formula) ? null : [element("span", { class: "hint" }, " = "), symbols.code(formula)])];
    });
    return element("section", {}, element("h4", {}, "Cost"), element("dl", { class: "facts" }, facts));
  }
}

/** Return lines of source with their numbers, and carets below what is marked. */
function sourceLines(first, texts, marks) {
  const width = String(first + texts.length - 1).length;
  return texts.flatMap((text, place) => {
    const number = first + place;
    const margin = element("span", { class: "line-number" }, `${String(number).padStart(width)} `);
    const mark = marks.get(number);
    if (mark === undefined) return [margin, `${text}\n`];
    const [start, length] = mark;
    return [
      margin, text.slice(0, start), element("mark", {}, text.slice(start, start + length)), `${text.slice(start + length)}\n`,
      element("span", { class: "carets", "aria-hidden": "true" }, `${" ".repeat(width + 1 + start)}${"^".repeat(length)}\n`),
    ];
  });
}
