// The page of one trace: its parts, and what is selected.

"use strict";

class TracePage {
  constructor(root) {
    const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    this.root = root;
    this.selected = 0;
    this.opener = null;
    this.sizes = new Sizes(data.sizes, data.conditions);
    this.numbers = new Numbers(data, this.sizes);
    this.symbols = new Symbols(this.sizes.records);
    this.steps = data.steps.map((values) => namedStep(values, this.numbers));
    this.inputs = new Map(data.inputs.map(([name, tensor]) => [name, tensor]));
    this.loops = data.loops;
    this.costs = data.totals;
    this.hasCosts = data.totals.length > 0;
    this.isNew = this.newResults();
    this.table = new StepsTable(this, data);
    this.details = new StepDetails(this, data);
    this.picture = data.flow.edges.length > 0 ? new FlowPicture(this, data) : null;
    this.controls = new SizeControls(this);
    this.totals = element("dl", { class: "totals" });
    this.build();
  }

  part(name) {
    return this.root.querySelector(`[data-part="${name}"]`);
  }

  build() {
    this.part("sizes").replaceChildren(this.controls.frame, this.totals);
    if (this.picture !== null) this.part("flow").replaceChildren(this.picture.unfolded, this.picture.frame);
    else this.part("flow").closest("section").hidden = true;
    const scroll = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "steps" }, this.table.table);
    this.part("steps").replaceChildren(this.table.rows.length > 30 ? this.filter() : "", scroll);
    this.part("details").replaceChildren(this.details.frame);
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.details.frame.hidden) this.deselect();
    });
    addEventListener("printing", () => {
      if (this.table.rows.length <= 2000) this.table.openAll();
      this.picture?.draw();
    });
    this.refreshTotals();
    this.root.classList.add("ready");
  }

  filter() {
    const count = element("span", { class: "hint", role: "status" });
    const input = element("input", { type: "search", "aria-label": "filter the steps", placeholder: "filter: name, operation, module, role", oninput: () => {
      const found = this.table.filter(input.value);
      const shown = found > MOST_MATCHES ? `, ${MOST_MATCHES} shown` : "";
      count.textContent = input.value.trim() === "" ? "" : `${grouped(String(found))} rows${shown}`;
    } });
    return element("p", { class: "filter" }, input, " ", count);
  }

  /** Show a step in the table, in the picture, and its details; the page stays where it is. Return the row. */
  select(step, node = null) {
    if (!this.details.frame.contains(document.activeElement)) this.opener = document.activeElement;
    this.selected = step;
    const row = this.table.select(step);
    this.picture?.mark(step);
    const whole = node ?? this.picture?.flow.nodes.find((one) => one.steps.includes(step)) ?? null;
    this.details.show(step, whole);
    this.details.heading.focus({ preventScroll: true });
    return row;
  }

  /** Show a step, and scroll to its row. */
  goTo(step, node = null) {
    scrollIntoSight(this.select(step, node));
  }

  selectNode(node) {
    if (node.steps.length > 0) {
      const names = node.title.split(", ");
      const named = node.steps.findLast((step) => this.steps[step - 1].outputs.some((output) => names.includes(output.name)));
      this.select(named ?? node.steps.at(-1), node);
      scrollIntoSight(this.picture.groupOf(node));
      return;
    }
    this.deselect(false);
    this.opener = document.activeElement;
    this.details.showTensor(node.title, node.kind === "input" ? this.inputs.get(node.title) ?? null : null);
    this.details.heading.focus({ preventScroll: true });
  }

  deselect(returnsFocus = true) {
    this.details.frame.hidden = true;
    this.selected = 0;
    this.table.select(0);
    this.picture?.mark(0);
    if (returnsFocus) this.opener?.focus({ preventScroll: true });
  }

  /** Show everything at the sizes that are chosen now. */
  refresh() {
    this.table.refresh();
    this.refreshTotals();
    if (this.selected > 0 && !this.details.frame.hidden) this.details.show(this.selected, this.picture?.flow.nodes.find((one) => one.steps.includes(this.selected)) ?? null);
  }

  /** Return the tensors that steps allocate, each with the loops around it. */
  newResults() {
    return this.steps.flatMap((step, place) => {
      const loops = this.loops.filter(([first, last]) => first <= place + 1 && place + 1 <= last).map(([, , count]) => count);
      return step.outputs.filter((output) => output.isAllocated).map((output) => (
        { tensor: this.numbers.tensors[output.tensor], loops }
      ));
    });
  }

  refreshTotals() {
    const { numbers, sizes, symbols } = this;
    const stored = this.isNew.reduce((sum, { tensor, loops }) => (
      sum + numbers.bytes(tensor) * loops.reduce((product, count) => product * numbers.quantity(count), 1)
    ), 0);
    const shown = (number, format) => (sizes.valid ? format(number) : "–");
    const facts = [
      ...(this.steps.length > 0 ? [["new storage", shown(stored, formatBytes), ""]] : []),
      ...this.costs.map(([name, place, inBytes]) => (
        [name, shown(numbers.quantity(place), inBytes ? formatBytes : formatCount), numbers.formula(place)]
      )),
    ];
    this.totals.replaceChildren(...facts.flatMap(([name, number, formula]) => [
      element("dt", {}, name),
      element("dd", {}, element("strong", {}, number), formula === "" ? "" : element("span", { class: "formula" }, " = ", symbols.code(formula))),
    ]));
  }
}

/** Scroll as little as it takes to show an element; above the details, where they cover the page. */
function scrollIntoSight(shown) {
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  shown?.scrollIntoView({ block: "nearest", inline: "nearest", behavior });
}

// a page of several traces builds each one when it is opened
for (const root of document.querySelectorAll(".trace")) {
  const fold = root.closest("details");
  if (fold === null || fold.open) new TracePage(root);
  else fold.addEventListener("toggle", () => root.matches(".ready") || new TracePage(root));
}
