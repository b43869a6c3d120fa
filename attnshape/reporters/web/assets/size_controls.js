// The sizes as sliders.

"use strict";

/** Return the sizes that a slider stops at: powers of two, three times these, and the run's own size. */
function stops(own) {
  const most = Math.max(own * 16, 64);
  const found = new Set([own]);
  for (let power = 1; power <= most; power *= 2) {
    found.add(power);
    if (power > 1 && power * 1.5 <= most) found.add(power * 1.5);
  }
  return [...found].sort((one, other) => one - other);
}

class SizeControls {
  constructor(page) {
    this.page = page;
    const { sizes } = page;
    this.controls = sizes.records.map((record) => this.control(record));
    this.status = element("p", { class: "status", role: "status" });
    this.button = element("button", { class: "reset", hidden: true, onclick: () => this.reset() }, "reset to the run");
    this.frame = element("div", { class: "controls" },
      element("div", { class: "sliders" }, this.controls.map((one) => one.row)), this.status, this.button);
    const longest = Math.max(...sizes.records.map((record) => record.symbol.length), 0);
    this.frame.style.setProperty("--name", `${Math.min(Math.max(longest, 3), 12)}ch`);
    this.refresh();
  }

  control(record) {
    const { symbols } = this.page;
    const name = element("span", { class: "size-name", title: record.symbol }, symbols.parts(record.symbol));
    if (record.tree !== null) {
      const value = element("output", {});
      return { record, value, row: element("div", { class: "size derived" }, name, element("span", { class: "hint" }, "= ", symbols.parts(record.expression)), value) };
    }
    const values = stops(record.size);
    const range = element("input", {
      type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": `size ${record.symbol}`, disabled: record.fixed,
      oninput: () => this.choose(record, values[Number(range.value)]),
    });
    const number = element("input", {
      type: "number", min: 1, step: 1, inputmode: "numeric", "aria-label": `size ${record.symbol}, as a number`, disabled: record.fixed,
      oninput: () => {
        const size = Math.trunc(Number(number.value));
        if (size >= 1 && size <= 2 ** 40) this.choose(record, size);
      },
    });
    const why = record.fixed ? element("span", { class: "hint" }, "not varied") : null;
    return { record, values, range, number, row: element("div", { class: "size" }, name, range, number, why) };
  }

  choose(record, size) {
    this.page.sizes.choose(record.symbol, size);
    this.refresh(record);
    this.page.refresh();
  }

  reset() {
    this.page.sizes.reset();
    this.refresh();
    this.page.refresh();
  }

  /** Show the sizes that are chosen; not in the field in which the reader types. */
  refresh() {
    const { sizes } = this.page;
    for (const { record, value, values, range, number } of this.controls) {
      const size = sizes.numbers.get(record.symbol);
      if (value) {
        value.textContent = Number.isInteger(size) && size >= 1 ? String(size) : "–";
        continue;
      }
      if (Number(number.value) !== size) number.value = String(size);
      const at = values.findLastIndex((stop) => stop <= size);
      range.value = String(Math.max(at, 0));
      range.setAttribute("aria-valuetext", String(size));
    }
    this.button.hidden = !sizes.changed;
    this.status.classList.toggle("problem", !sizes.valid);
    this.status.textContent = !sizes.changed ? "These are the sizes of the run."
      : sizes.valid ? "Computed from the formulas of the trace, within its preconditions."
        : `No formula holds at these sizes: ${sizes.problems.join(", ")}.`;
  }
}
