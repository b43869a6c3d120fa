// The data flow with modules folded: which nodes are visible, and which edges are between them.

"use strict";

const MOST_VISIBLE = 40;
const ENOUGH_VISIBLE = 28;

class FoldedFlow {
  constructor(flow, numbers) {
    this.folds = flow.folds.map(([title, parent, times, does]) => (
      { title: numbers.text(title), parent, times: numbers.text(times), does: numbers.text(does), isFolded: true, parts: 0, hasAttention: false }
    ));
    this.nodes = flow.nodes.map(([title, does, kind, times, steps, fold]) => (
      { title: numbers.text(title), does: numbers.text(does), kind, times: numbers.text(times), steps, fold }
    ));
    this.edges = flow.edges.map(([source, target, signature]) => ({ source, target, signature: numbers.text(signature) }));
    for (const { parent } of this.folds) if (parent >= 0) this.folds[parent].parts += 1;
    for (const node of this.nodes) {
      if (node.fold >= 0) this.folds[node.fold].parts += 1;
      if (node.kind === "softmax") for (const fold of this.around(node)) this.folds[fold].hasAttention = true;
    }
    this.unfoldFirst();
  }

  /** Return the folds around a node, the innermost first. */
  around(node) {
    const found = [];
    for (let fold = node.fold; fold >= 0; fold = this.folds[fold].parent) found.push(fold);
    return found;
  }

  /** Unfold what there is room for: what has attention first, then the rest, from the outside to the inside. */
  unfoldFirst() {
    const outside = this.folds.filter((fold) => fold.parent < 0).length;
    let count = outside + this.nodes.filter((node) => node.fold < 0).length;
    for (const [isWanted, most] of [[(fold) => fold.hasAttention, MOST_VISIBLE], [() => true, ENOUGH_VISIBLE]]) {
      // a fold comes after that around it
      for (const fold of this.folds) {
        const isVisible = fold.parent < 0 || !this.folds[fold.parent].isFolded;
        if (!fold.isFolded || !isVisible || !isWanted(fold) || count + fold.parts - 1 > most) continue;
        fold.isFolded = false;
        count += fold.parts - 1;
      }
    }
  }

  fold(place, isFolded) {
    this.folds[place].isFolded = isFolded;
  }

  /** Return the parts that are unfolded and visible. */
  unfolded() {
    return this.folds.map((fold, place) => ({ fold: place, title: fold.title, whole: fold }))
      .filter(({ whole }) => !whole.isFolded && this.chain(whole.parent).every((place) => !this.folds[place].isFolded));
  }

  chain(fold) {
    return fold < 0 ? [] : [fold, ...this.chain(this.folds[fold].parent)];
  }

  /** Return the visible nodes, and the edges between them. */
  visible() {
    const places = new Map();
    const nodes = [];
    const placeOf = this.nodes.map((node, own) => {
      const within = this.around(node);
      const fold = within.findLast((place) => this.folds[place].isFolded) ?? -1;
      const key = fold < 0 ? `node ${own}` : `fold ${fold}`;
      if (!places.has(key)) {
        places.set(key, nodes.length);
        const { title, times, does, hasAttention } = fold < 0 ? node : this.folds[fold];
        const kind = fold < 0 ? node.kind : hasAttention ? "softmax folded" : "folded";
        nodes.push({ title, times, does, kind, steps: [], fold, within });
      }
      nodes[places.get(key)].steps.push(...node.steps);
      return places.get(key);
    });
    const edges = new Map();
    for (const edge of this.edges) {
      const [source, target] = [placeOf[edge.source], placeOf[edge.target]];
      if (source !== target) edges.set(`${source} ${target} ${edge.signature}`, { source, target, signature: edge.signature });
    }
    return { nodes, edges: [...edges.values()] };
  }
}
