// The table of the steps: rows in groups that fold, cells that follow the sizes.

"use strict";

const ROWS_IN_GROUP = 250;
const FOLD_FROM = 600;
const MOST_MATCHES = 500;
const FORMULA_COLUMNS = new Set(["signature", "strides"]);
const COST_COLUMNS = ["flops", "moved", "temporary", "saved"];

class StepsTable {
  constructor(page, data) {
    this.page = page;
    this.columns = data.columns.map(([name, isCode]) => ({ name, isCode }));
    this.rows = data.rows.map(([kind, step, tensor, cells, heading, explanation]) => (
      { kind, step, tensor, cells, heading, explanation }
    ));
    // the rows of a step's results belong to it
    let step = -1;
    for (const row of this.rows) {
      step = row.kind === "output" ? step : row.step;
      row.owner = row.kind === "output" ? step : row.step;
    }
    this.shown = [];
    this.table = element("table", { role: "table" }, this.head());
    this.groups = this.makeGroups();
    this.table.append(...this.groups.map((group) => group.body));
  }

  head() {
    const names = ["#", ...this.columns.map((column) => column.name)];
    const cells = names.map((name) => element("th", { scope: "col", role: "columnheader" }, name));
    return element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, cells));
  }

  /** Return the rows in groups: a group begins at a heading, and a long one is divided. */
  makeGroups() {
    const groups = [];
    for (const row of this.rows) {
      const last = groups.at(-1);
      if (last === undefined || row.heading >= 0 || (last.rows.length >= ROWS_IN_GROUP && row.kind !== "output")) {
        const title = row.heading >= 0 ? this.page.numbers.text(row.heading) : last?.title ?? "";
        groups.push({ title, rows: [], open: false, filled: false, continues: row.heading < 0 && last !== undefined });
      }
      groups.at(-1).rows.push(row);
    }
    let count = 0;
    for (const group of groups) {
      this.makeBody(group, this.rows.length <= FOLD_FROM || count < ROWS_IN_GROUP);
      count += group.rows.length;
    }
    return groups;
  }

  makeBody(group, open) {
    group.body = element("tbody", { role: "rowgroup" });
    const steps = group.rows.map((row) => row.step).filter((step) => step > 0);
    const range = steps.length > 1 ? `steps ${steps[0]} – ${steps.at(-1)}` : "";
    if (group.title !== "" || group.continues) {
      const label = [group.title, (group.continues || !open) && range].filter(Boolean).join(" · ");
      group.button = element("button", { class: "fold", onclick: () => this.fold(group, !group.open) }, label);
      const cell = element("th", { scope: "rowgroup", role: "rowheader", colspan: this.columns.length + 1 }, group.button);
      group.body.append(element("tr", { class: "group", role: "row" }, cell));
    }
    this.fold(group, open);
  }

  fold(group, open) {
    group.open = open;
    group.button?.setAttribute("aria-expanded", String(open));
    if (open && !group.filled) {
      group.filled = true;
      this.add(group, group.rows);
    }
    for (const row of group.rows) if (row.elements) for (const one of row.elements) one.hidden = !open;
  }

  /** Put rows into the table, after those of their group that it has. */
  add(group, rows) {
    group.body.append(...rows.flatMap((row) => row.elements ?? this.rowElements(row)));
  }

  rowElements(row) {
    const select = row.owner > 0 ? () => this.page.goTo(row.owner) : null;
    const number = row.step > 0
      ? element("button", { class: "number", "aria-label": `step ${row.step}`, onclick: (event) => {
        event.stopPropagation();
        select();
      } }, String(row.step))
      : row.kind === "failure" ? "✗" : "";
    row.cellElements = this.columns.map((column, place) => (
      element("td", { role: "cell", "data-column": column.name, class: `c-${column.name}` }, this.cell(row, column, place))
    ));
    const line = element("tr", { role: "row", class: `row ${row.kind}` },
      element("td", { role: "cell", class: "c-number" }, number), row.cellElements);
    if (select !== null) line.addEventListener("click", () => getSelection().isCollapsed && select());
    row.elements = [line];
    if (row.explanation >= 0) {
      const text = element("td", { role: "cell", colspan: this.columns.length }, this.page.numbers.text(row.explanation));
      row.elements.push(element("tr", { role: "row", class: "explanation" }, element("td", { role: "cell" }), text));
    }
    if (row.owner === this.page.selected) line.classList.add("selected");
    this.shown.push(row);
    return row.elements;
  }

  /** Return the content of a cell: the run's text, or what the formulas give at other sizes. */
  cell(row, column, place) {
    const whole = this.cellText(row, column.name, this.page.numbers.text(row.cells[place]));
    // the formulas of costs are long: they stand in the details
    const text = COST_COLUMNS.includes(column.name) ? whole.split(" = ")[0] : whole;
    if (text === "") return "";
    if (FORMULA_COLUMNS.has(column.name)) return this.page.symbols.code(text);
    return column.isCode && !COST_COLUMNS.includes(column.name) ? element("code", {}, text) : text;
  }

  cellText(row, name, text) {
    const { numbers, sizes } = this.page;
    if (!sizes.changed || text === "") return text;
    const tensor = row.tensor >= 0 ? numbers.tensors[row.tensor] : null;
    const cost = row.step > 0 ? this.page.steps[row.step - 1].cost : null;
    if (!sizes.valid) return ["shape", "stride", "storage", "bytes", "intensity", ...COST_COLUMNS].includes(name) ? "–" : text;
    if (tensor !== null && name === "shape") return formatShape(numbers.shape(tensor));
    if (tensor !== null && name === "stride" && tensor.strides.length === tensor.axes.length) {
      return formatShape(numbers.strides(tensor)) + (tensor.contiguous ? "" : " ≁");
    }
    if (tensor !== null && name === "storage" && text.startsWith("new ")) return `new ${formatBytes(numbers.bytes(tensor))}`;
    if (tensor !== null && name === "bytes") {
      const count = numbers.bytes(tensor);
      return Number.isNaN(count) ? UNKNOWN : grouped(String(count));
    }
    const place = COST_COLUMNS.indexOf(name);
    if (cost !== null && place >= 0 && cost[place] >= 0) {
      return formatCost(numbers.quantity(cost[place]), place > 0);
    }
    if (cost !== null && name === "intensity") return formatRatio(numbers.quantity(cost[0]) / numbers.quantity(cost[1]));
    return text;
  }

  /** Write the cells again, at the sizes that are chosen now. */
  refresh() {
    for (const row of this.shown) {
      for (const [place, column] of this.columns.entries()) {
        row.cellElements[place].replaceChildren(this.cell(row, column, place));
      }
    }
  }

  /** Mark the rows of a step, and return the first; its group is unfolded. */
  select(step) {
    for (const row of this.shown) row.elements[0].classList.toggle("selected", row.owner === step && step > 0);
    const group = this.groups.find((one) => one.rows.some((row) => row.step === step));
    if (group === undefined) return null;
    if (!group.open) this.fold(group, true);
    return group.rows.find((row) => row.step === step).elements?.[0] ?? null;
  }

  /** Show only the rows that contain a text, and not too many; return how many there are. */
  filter(text) {
    const wanted = text.trim().toLowerCase();
    this.table.classList.toggle("filtered", wanted !== "");
    let count = 0;
    for (const group of this.groups) {
      if (wanted === "") {
        this.fold(group, group.open);
        continue;
      }
      const matching = group.rows.filter((row) => this.matches(row, wanted));
      const shown = new Set(matching.slice(0, Math.max(MOST_MATCHES - count, 0)));
      if (!group.filled) this.add(group, [...shown]);
      for (const row of group.rows) for (const one of row.elements ?? []) one.hidden = !shown.has(row);
      count += matching.length;
    }
    return count;
  }

  matches(row, wanted) {
    const { numbers } = this.page;
    const step = row.step > 0 ? this.page.steps[row.step - 1] : null;
    const words = row.cells.map((cell) => numbers.text(cell));
    if (step !== null) words.push(numbers.text(step.expression), step.role, step.module, step.operation, step.place);
    return words.some((word) => word.toLowerCase().includes(wanted));
  }

  openAll() {
    for (const group of this.groups) this.fold(group, true);
  }
}
