// The sizes of a page, and the numbers that follow from them.

"use strict";

/** Return the number of a formula's tree, or whether a condition's tree holds, at these sizes. */
function evaluate(tree, sizes) {
  if (typeof tree === "number") return tree;
  if (typeof tree === "string") return sizes.get(tree);
  const [operator, ...operands] = tree;
  const [left, right] = operands.map((operand) => evaluate(operand, sizes));
  switch (operator) {
    case "+": return left + right;
    case "-": return operands.length === 1 ? -left : left - right;
    case "*": return left * right;
    case "//": return Math.floor(left / right);
    case "%": return left - right * Math.floor(left / right);
    case "**": return left ** right;
    case "abs": return Math.abs(left);
    case "<": return left < right;
    case "<=": return left <= right;
    case ">": return left > right;
    case ">=": return left >= right;
    case "==": return left === right;
    case "!=": return left !== right;
    case "and": return left && right;
    case "or": return left || right;
    case "not": return !left;
    default: throw new Error(`unknown operator ${operator}`);
  }
}

/** The numbers of the size symbols: those of the run, and those that the reader chooses. */
class Sizes {
  constructor(records, conditions) {
    this.records = records.map(([symbol, size, expression, tree, fixed, small, color]) => (
      { symbol, size, expression, tree, fixed: fixed === 1, small, color }
    ));
    this.conditions = conditions;
    this.own = new Map(this.records.map((record) => [record.symbol, record.size]));
    this.small = this.records.every((record) => record.small > 0)
      ? new Map(this.records.map((record) => [record.symbol, record.small])) : null;
    this.numbers = new Map(this.own);
    this.problems = [];
  }

  /** Whether some size isn't that of the run. */
  get changed() {
    return this.records.some(({ symbol, size }) => this.numbers.get(symbol) !== size);
  }

  /** Whether the formulas hold at the chosen sizes. */
  get valid() {
    return this.problems.length === 0;
  }

  /** Choose the size of a symbol that follows from no others. */
  choose(symbol, size) {
    this.numbers.set(symbol, size);
    // what follows may follow from what follows
    const derived = this.records.filter((record) => record.tree !== null);
    for (const _ of derived) {
      for (const record of derived) this.numbers.set(record.symbol, evaluate(record.tree, this.numbers));
    }
    this.problems = this.problemsAt(this.numbers);
  }

  reset() {
    this.numbers = new Map(this.own);
    this.problems = [];
  }

  /** Return what must hold of the sizes and doesn't. */
  problemsAt(numbers) {
    const broken = this.conditions.filter(([, tree]) => !evaluate(tree, numbers)).map(([text]) => text);
    const small = this.records.filter(({ symbol }) => !(numbers.get(symbol) >= 1));
    return [...broken, ...small.map(({ symbol }) => `${symbol} is at least 1`)];
  }
}

/** The numbers of a trace at the chosen sizes; NaN stands for a number that isn't known there. */
class Numbers {
  constructor(data, sizes) {
    this.texts = data.texts;
    this.sizes = sizes;
    this.quantities = data.quantities.map(([text, value, tree, condition]) => ({ text, value, tree, condition }));
    this.tensors = data.tensors.map(
      ([signature, shape, stride, dtype, axes, strides, width, contiguous, isNew, known]) => (
        { signature, shape, stride, dtype, axes, strides, width, contiguous: contiguous === 1, isNew: isNew === 1, known }
      ),
    );
  }

  text(place) {
    return place < 0 ? "" : this.texts[place];
  }

  /** Return the number of a quantity, at the chosen sizes or at others. */
  quantity(place, sizes = this.sizes.numbers) {
    if (place < 0) return NaN;
    const { value, tree, condition } = this.quantities[place];
    if (sizes === this.sizes.numbers && !this.sizes.changed) return value;
    if (tree === null || (condition && !evaluate(condition, sizes))) return NaN;
    return evaluate(tree, sizes);
  }

  formula(place) {
    return this.text(this.quantities[place].text);
  }

  shape(tensor, sizes) {
    return tensor.axes.map((axis) => this.quantity(axis, sizes));
  }

  /** Return the strides of a tensor; where a formula is missing, those of a contiguous one follow from its shape. */
  strides(tensor, sizes) {
    const shape = this.shape(tensor, sizes);
    return tensor.strides.map((stride, axis) => {
      const number = this.quantity(stride, sizes);
      if (!Number.isNaN(number) || !tensor.contiguous) return number;
      return shape.slice(axis + 1).reduce((product, size) => product * size, 1);
    });
  }

  bytes(tensor) {
    if (tensor.width < 0) return NaN;
    return this.shape(tensor).reduce((product, size) => product * size, 1) * tensor.width;
  }
}
