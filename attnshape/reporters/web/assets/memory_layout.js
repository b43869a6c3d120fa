// Which element of a tensor lies where in memory, at sizes so small that each element can be drawn.

"use strict";

const CELL = 24;
const MOST_ELEMENTS = 144;
const BLOCK_GAP = 14;

/** Return every index of a shape, in the order in which its elements are read: row by row. */
function indices(shape) {
  return shape.reduce(
    (known, size) => known.flatMap((index) => Array.from({ length: size }, (_, next) => [...index, next])), [[]],
  );
}

function address(index, strides) {
  return index.reduce((sum, place, axis) => sum + place * strides[axis], 0);
}

/** The pictures of a step that changes the layout, and the sentences about them. */
class MemoryLayout {
  constructor(page, step) {
    this.page = page;
    this.step = step;
    const { numbers } = page;
    const output = numbers.tensors[step.outputs[0].tensor];
    this.before = this.small(numbers.tensors[step.before]);
    this.after = this.small(output);
    this.isCopy = output.isNew;
  }

  /** Return a tensor at small sizes. */
  small(tensor) {
    const { numbers, sizes } = this.page;
    if (sizes.small === null) return null;
    const [shape, strides] = [numbers.shape(tensor, sizes.small), numbers.strides(tensor, sizes.small)];
    const count = shape.reduce((product, size) => product * size, 1);
    if (![...shape, ...strides].every(Number.isFinite) || count > MOST_ELEMENTS || count === 0) return null;
    return { shape, strides, axes: tensor.axes.map((axis) => numbers.formula(axis)), count, isView: !tensor.isNew };
  }

  /** Return the whole section; null if the tensors can't be drawn. */
  section() {
    if (this.before === null || this.after === null || this.before.shape.length > 6 || this.after.shape.length > 6) return null;
    const small = this.page.sizes.records.map(({ symbol, small: size }) => `${symbol}=${size}`).join(" ");
    return element("section", { class: "memory" },
      element("h4", {}, "Memory layout"),
      element("p", { class: "hint" }, "Drawn at ", this.page.symbols.code(small),
        ". A number is an element’s place in memory; in the strip it is the element’s place in reading order."),
      element("div", { class: "grids" }, this.tensor("before", this.before), this.tensor("after", this.after)),
      element("ul", { class: "sentences" }, this.sentences().map((parts) => element("li", {}, parts))));
  }

  tensor(title, tensor) {
    const { symbols } = this.page;
    return element("figure", {},
      element("figcaption", {}, element("span", { class: "side" }, title), " ", symbols.code(tensor.axes.join(" ") || "scalar"),
        element("span", { class: "hint" }, ` stride ${formatShape(tensor.strides)}`)),
      this.grid(tensor), this.strip(tensor));
  }

  /** Draw the last two axes as rows and columns, and a block for each index of those before them. */
  grid(tensor) {
    const { shape, strides, axes } = tensor;
    const rank = shape.length;
    const [rows, columns] = [rank > 1 ? shape[rank - 2] : 1, rank > 0 ? shape[rank - 1] : 1];
    const outer = indices(shape.slice(0, Math.max(rank - 2, 0)));
    const most = Math.max(...indices(shape).map((index) => address(index, strides)));
    const isNamed = rank > 2 && shape[rank - 3] > 1;
    const [width, height] = [columns * CELL + BLOCK_GAP, rows * CELL + BLOCK_GAP + (isNamed ? 12 : 0)];
    const perRow = Math.max(1, Math.min(outer.length, Math.floor(330 / width), rank > 2 ? shape[rank - 3] : 1));
    const cells = outer.flatMap((block, place) => {
      const [left, top] = [26 + (place % perRow) * width, (isNamed ? 28 : 16) + Math.floor(place / perRow) * height];
      const name = isNamed
        ? svg("text", { x: left + 1, y: top - 3, class: "axis" }, this.page.symbols.drawn(axes[rank - 3]), ` ${block.at(-1)}`) : null;
      return [name, indices([rows, columns]).map(([row, column]) => {
        const index = [...block, ...(rank > 1 ? [row] : []), ...(rank > 0 ? [column] : [])];
        const at = address(index, strides);
        return this.cell(left + column * CELL, top + row * CELL, at, most, String(at));
      })];
    });
    const names = [
      rank > 0 ? svg("text", { x: 26, y: 11, class: "axis" }, this.page.symbols.drawn(axes[rank - 1]), " →") : null,
      rank > 1 ? svg("text", { x: 0, y: isNamed ? 44 : 32, class: "axis" }, this.page.symbols.drawn(axes[rank - 2]), "↓") : null,
    ];
    const order = indices(shape).map((index) => address(index, strides));
    return svg("svg", {
      class: "grid", role: "img", width: 28 + perRow * width, height: (isNamed ? 20 : 18) + Math.ceil(outer.length / perRow) * height,
      "aria-label": `places in memory, in reading order: ${order.join(" ")}`,
    }, names, cells);
  }

  /** Draw the memory from its first place on, with the elements that lie there. */
  strip(tensor) {
    const places = new Map();
    for (const [count, index] of indices(tensor.shape).entries()) {
      const at = address(index, tensor.strides);
      places.set(at, [...(places.get(at) ?? []), count]);
    }
    const most = Math.max(...places.keys());
    const perRow = 12;
    const cells = Array.from({ length: Math.min(most + 1, MOST_ELEMENTS) }, (_, at) => {
      const held = places.get(at) ?? [];
      const text = held.length > 1 ? `${held.length}×` : held.join("");
      return this.cell((at % perRow) * CELL, Math.floor(at / perRow) * CELL, held.length > 0 ? at : -1, most, text);
    });
    return svg("svg", {
      class: "strip", role: "img", width: Math.min(perRow, cells.length) * CELL + 2, height: Math.ceil(cells.length / perRow) * CELL + 2,
      "aria-label": `elements in memory order: ${[...places.keys()].sort((one, other) => one - other).map((at) => places.get(at).join("/")).join(" ")}`,
    }, cells);
  }

  cell(x, y, at, most, text) {
    const box = svg("rect", { x: x + 1, y: y + 1, width: CELL - 2, height: CELL - 2, rx: 2, class: at < 0 ? "unused" : "place" });
    if (at >= 0) box.style.setProperty("--at", String(most > 0 ? at / most : 0));
    return svg("g", {}, box, svg("text", { x: x + CELL / 2, y: y + CELL / 2 + 4 }, text));
  }

  /** Return what the pictures show, as parts of sentences. */
  sentences() {
    const { after, isCopy } = this;
    const name = element("code", {}, this.step.operation);
    if (isCopy) {
      return [[name, ` copies: all ${after.count} elements get new places, in reading order.`], ...this.origins()];
    }
    const same = JSON.stringify([this.before.shape, this.before.strides]) === JSON.stringify([after.shape, after.strides]);
    const sentences = [[name, same ? " changes nothing." : " moves no element: the same memory is read with other strides."]];
    for (const [axis, stride] of after.strides.entries()) {
      if (stride === 0 && after.shape[axis] > 1) {
        sentences.push(["Along ", this.page.symbols.code(after.axes[axis]), " the stride is 0: each element is seen ",
          `${after.shape[axis]} times, and stored once.`]);
      }
    }
    return [...sentences, ...this.seams().map((seam) => this.seam(seam))];
  }

  /** Return the order in which a copy takes the elements from the old memory. */
  origins() {
    const places = indices(this.before.shape).map((index) => address(index, this.before.strides));
    const isInOrder = places.every((place, count) => place === count);
    if (isInOrder) return [];
    const first = places.slice(0, 12).join(", ");
    return [[`It takes them from the old places ${first}${places.length > 12 ? ", …" : ""}: row by row, across the old memory.`]];
  }

  /** Return the pairs of neighbouring axes that no view can merge into one. */
  seams() {
    const { shape, strides } = this.after;
    const long = shape.map((_, axis) => axis).filter((axis) => shape[axis] > 1);
    return long.slice(1).map((axis, place) => [long[place], axis])
      .filter(([outer, inner]) => strides[outer] !== shape[inner] * strides[inner] && strides[outer] !== 0);
  }

  seam([outer, inner]) {
    const { shape, strides, axes } = this.after;
    const code = (text) => this.page.symbols.code(text);
    return [code(".view"), " can’t merge ", code(axes[outer]), " and ", code(axes[inner]), ": a step along ", code(axes[outer]),
      ` is ${strides[outer]} places, and would have to be ${shape[inner]} × ${strides[inner]} = ${shape[inner] * strides[inner]}. `,
      code(".reshape"), " and ", code(".contiguous"), " copy first."];
  }
}
