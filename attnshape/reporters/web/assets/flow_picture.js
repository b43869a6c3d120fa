// The picture of the data flow.

"use strict";

/** The height, in pixels, from which a picture that is printed on one page would have too small a font. */
const TALL = 1900;
const RADII = { input: 15, output: 15, softmax: 15 };

class FlowPicture {
  constructor(page, data) {
    this.page = page;
    this.folded = new FoldedFlow(data.flow, page.numbers);
    this.flow = this.folded.visible();
    this.frame = element("div", { class: "flow-frame", role: "group", "aria-label": "data flow" });
    this.unfolded = element("p", { class: "unfolded" });
    this.groups = [];
    this.drawnFor = 0;
    new ResizeObserver(() => this.draw()).observe(this.frame);
    this.listUnfolded();
  }

  /** Fold or unfold a part of the picture. */
  fold(fold, isFolded) {
    this.folded.fold(fold, isFolded);
    this.flow = this.folded.visible();
    this.drawnFor = 0;
    this.draw();
    this.listUnfolded();
    const shown = this.groups.find((group) => this.flow.nodes[Number(group.dataset.node)].within.includes(fold));
    shown?.focus({ preventScroll: true });
    shown?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** Show a button for each part that can be folded. */
  listUnfolded() {
    const buttons = this.folded.unfolded().map(({ fold, title }) => element("button", {
      class: "chip", "aria-label": `fold ${title}`, onclick: () => this.fold(fold, true),
    }, `⊟ ${title}`));
    this.unfolded.replaceChildren(...buttons);
    this.unfolded.hidden = buttons.length === 0;
  }

  draw() {
    const width = this.frame.clientWidth;
    // a scroll bar that appears changes the width a little
    if (width === 0 || Math.abs(width - this.drawnFor) < 24) return;
    this.drawnFor = width;
    const layout = layOut(this.flow, width);
    const marker = newId("arrow");
    const arrow = svg("marker", { id: marker, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      svg("path", { d: "M0 0 L8 4 L0 8 z", class: "arrow" }));
    const lines = layout.edges.map((edge) => svg("path", { d: edge.path, class: "edge", "marker-end": `url(#${marker})` }));
    const drawn = layout.nodes.map((node) => this.node(node));
    this.groups = drawn.map((group) => group.matches(".node") ? group : group.querySelector(".node"));
    // all outlines are below all texts: an outline would cover the end of the text before it
    const labels = layout.nodes.flatMap((node) => node.ports.map((port) => this.label(node, port)));
    const scale = Math.max(Math.min(1, width / layout.width), SMALLEST);
    this.frame.replaceChildren(svg("svg", {
      class: [layout.height < TALL ? "" : "tall", layout.isNarrow ? "narrow" : ""].join(" ").trim() || null,
      viewBox: `0 0 ${layout.width} ${layout.height}`, width: layout.width * scale, height: layout.height * scale,
    }, svg("defs", {}, arrow), lines, labels.map(({ outline }) => outline), labels.map(({ text }) => text), drawn));
    this.frame.scrollLeft = (layout.width * scale - width) / 2;
    this.mark(this.page.selected);
  }

  node(node) {
    const left = node.x - node.width / 2;
    const box = { x: left, y: node.y, width: node.width, height: node.height, rx: RADII[node.kind] ?? 5, class: "box" };
    const inner = { x: left + 3, y: node.y + 3, width: node.width - 6, height: node.height - 6, rx: 3, class: "inner" };
    const whole = this.flow.nodes[node.place];
    const texts = [
      svg("text", { x: node.x + node.middle, y: node.y + 19, class: "title" }, node.title),
      ...node.does.map((line, place) => svg("text", { x: node.x + node.middle, y: node.y + 35 + 14 * place, class: "does" }, line)),
    ];
    const outgoing = node.ports.map((port) => port.signature).join("; ");
    const drawn = [node.title, node.does.join(" ")];
    const all = [`${whole.times} ${whole.title}`.trim(), whole.does];
    // the name begins with the words that are drawn, which people say to a computer that listens
    const name = [...drawn, ...all.filter((text) => !drawn.includes(text)), outgoing].filter(Boolean).join(": ");
    const group = svg("g", {
      ...asButton(name, () => this.page.selectNode(whole)), class: `node ${node.kind}`, "data-node": node.place,
    }, svg("title", {}, name), svg("rect", box), node.kind === "product" ? svg("rect", inner) : null, texts.flatMap((text) => [text, " "]));
    return whole.fold < 0 ? group : svg("g", {}, group, this.unfoldButton(node, whole));
  }

  unfoldButton(node, whole) {
    const [x, y] = [node.x + node.width / 2 - 11, node.y + 11];
    return svg("g", {
      ...asButton(`unfold ${whole.title}`, () => this.fold(whole.fold, false)), class: "unfold",
    }, svg("rect", { x: x - 7, y: y - 7, width: 14, height: 14, rx: 3 }), svg("path", { d: `M${x - 4} ${y} h8 M${x} ${y - 4} v8` }));
  }

  label(node, port) {
    const place = { x: port.x + 5, y: node.y + node.height + 15 };
    return {
      outline: svg("text", { ...place, class: "signature outline", "aria-hidden": "true" }, port.signature),
      text: svg("text", { ...place, class: "signature" }, this.page.symbols.drawn(port.signature)),
    };
  }

  groupOf(node) {
    return this.groups.find((group) => this.flow.nodes[Number(group.dataset.node)] === node);
  }

  /** Mark the node of a step. */
  mark(step) {
    for (const group of this.groups) {
      const node = this.flow.nodes[Number(group.dataset.node)];
      group.classList.toggle("selected", node.steps.includes(step));
    }
  }
}
