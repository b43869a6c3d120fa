// Where the nodes and edges of the data flow are drawn: in layers, from the top to the bottom.

"use strict";

const WIDE = { most: 212, title: 7.9, does: 6.1, label: 6.7, gap: 26, charsOfDoes: 30 };
const NARROW = { most: 128, title: 6.7, does: 5.6, label: 6.1, gap: 12, charsOfDoes: 20 };
const LINE_GAP = 16;
const LABEL_ROOM = 52;
const LABEL_HEIGHT = 22;
const SWEEPS = 12;
const STRAIGHT = 12;
const MIDDLE = 0.12;
const BUTTON_ROOM = 26;
const MARGIN = 4;

/** Return text in lines of so many characters, broken at spaces; the last one is cut. */
function wrapped(text, most, lines) {
  const done = [""];
  for (const word of text.split(" ")) {
    const line = done.at(-1) === "" ? word : `${done.at(-1)} ${word}`;
    if (line.length <= most || done.at(-1) === "") done[done.length - 1] = line;
    else done.push(word);
  }
  const kept = done.slice(0, lines);
  if (done.length > lines) kept[lines - 1] += " …";
  return kept.map((line) => (line.length <= most ? line : `${line.slice(0, most - 1)}…`));
}

/** The least scale at which the texts of the picture are drawn. */
const SMALLEST = 0.8;

/** Return the flow with positions: nodes with a box, ports and labels, edges with the points that they pass. */
function layOut(flow, width) {
  const wide = width < 560 ? null : layOutWith(WIDE, flow);
  return wide !== null && wide.width * SMALLEST <= width ? wide : { ...layOutWith(NARROW, flow), isNarrow: true };
}

function layOutWith(measures, flow) {
  const nodes = flow.nodes.map((node, place) => makeNode(node, place, flow.edges, measures));
  const layers = inLayers(nodes, flow.edges);
  const edges = throughLayers(layers, nodes, flow.edges);
  order(layers);
  placeAcross(layers, measures.gap);
  straighten(layers, edges);
  placeDown(layers);
  return bounded(nodes, edges, layers);
}

function makeNode(node, place, edges, measures) {
  const button = node.fold >= 0 ? BUTTON_ROOM : 0;
  const most = Math.floor((measures.most - 20) / measures.title);
  const name = node.times === "" ? node.title : `${node.times} ${node.title}`;
  const title = name.length <= most ? name : `${name.slice(0, most - 1)}…`;
  const does = node.does === "" ? [] : wrapped(node.does, measures.charsOfDoes, 2);
  const signatures = [...new Set(edges.filter((edge) => edge.source === place).map((edge) => edge.signature))];
  const ports = signatures.map((signature) => ({ signature, width: signature.length * measures.label + 14 }));
  const text = Math.max(title.length * measures.title, ...does.map((line) => line.length * measures.does));
  // the line of a single port is in the middle, with the label on its right
  const room = ports.length === 1 ? 2 * ports[0].width - 24 : ports.reduce((sum, port) => sum + port.width, 0);
  const width = Math.max(Math.min(text + 24, measures.most) + button, room + 6, 64);
  return { ...node, place, middle: -button / 2, title, does, ports, width, height: 30 + 15 * does.length, before: [], after: [] };
}

/** Put each node below all that it reads, and one that reads nothing just above its first reader. */
function inLayers(nodes, edges) {
  const sequence = inOrder(nodes, edges);
  const rank = new Map(sequence.map((place, at) => [place, at]));
  const forward = edges.filter((edge) => rank.get(edge.source) < rank.get(edge.target));
  for (const node of nodes) node.layer = 0;
  for (const place of sequence) {
    for (const edge of forward.filter((one) => one.source === place)) {
      nodes[edge.target].layer = Math.max(nodes[edge.target].layer, nodes[place].layer + 1);
    }
  }
  for (const [place, node] of nodes.entries()) {
    const read = forward.filter((edge) => edge.source === place).map((edge) => nodes[edge.target].layer);
    if (read.length > 0 && !forward.some((edge) => edge.target === place)) node.layer = Math.min(...read) - 1;
  }
  const layers = Array.from({ length: Math.max(0, ...nodes.map((node) => node.layer)) + 1 }, () => []);
  for (const node of nodes) layers[node.layer].push(node);
  return layers;
}

/** Return the places of the nodes, each after those that it reads; where they read each other, the first comes first. */
function inOrder(nodes, edges) {
  const waiting = new Set(nodes.keys());
  const sequence = [];
  while (waiting.size > 0) {
    const [first] = waiting;
    const isReady = (place) => !edges.some((edge) => edge.target === place && edge.source !== place && waiting.has(edge.source));
    const next = [...waiting].find(isReady) ?? first;
    waiting.delete(next);
    sequence.push(next);
  }
  return sequence;
}

/** Return the edges as chains from layer to layer: where one passes a layer it has a place of its own there. */
function throughLayers(layers, nodes, edges) {
  return edges.map((edge) => {
    const [source, target] = [nodes[edge.source], nodes[edge.target]];
    const chain = [source];
    for (let layer = source.layer + 1; layer < target.layer; layer += 1) {
      const bend = { width: 2, height: 0, before: [], after: [], isBend: true };
      layers[layer].push(bend);
      chain.push(bend);
    }
    chain.push(target);
    for (const [place, upper] of chain.slice(0, -1).entries()) {
      upper.after.push(chain[place + 1]);
      chain[place + 1].before.push(upper);
    }
    return { ...edge, chain };
  });
}

/** Order the nodes of each layer so that few edges cross. */
function order(layers) {
  const renumber = () => layers.forEach((layer) => layer.forEach((node, place) => { node.rank = place; }));
  renumber();
  let best = layers.map((layer) => [...layer]);
  let fewest = crossings(layers);
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep += 1) {
    const [side, sequence] = sweep % 2 === 0 ? ["before", layers] : ["after", [...layers].reverse()];
    for (const layer of sequence) {
      for (const node of layer) {
        const ranks = node[side].map((other) => other.rank);
        node.wish = ranks.length > 0 ? ranks.reduce((sum, rank) => sum + rank, 0) / ranks.length : node.rank;
      }
      layer.sort((one, other) => one.wish - other.wish || one.rank - other.rank);
      layer.forEach((node, place) => { node.rank = place; });
    }
    const count = crossings(layers);
    if (count < fewest) [fewest, best] = [count, layers.map((layer) => [...layer])];
  }
  best.forEach((layer, place) => layers[place].splice(0, layer.length, ...layer));
  renumber();
}

function crossings(layers) {
  let count = 0;
  for (const layer of layers) {
    const ends = layer.flatMap((node) => node.after.map((other) => other.rank).sort((one, other) => one - other));
    for (let one = 0; one < ends.length; one += 1) {
      for (let other = one + 1; other < ends.length; other += 1) if (ends[one] > ends[other]) count += 1;
    }
  }
  return count;
}

/** Place the nodes of each layer side by side, each as near to the middle of what it is connected with as there is room. */
function placeAcross(layers, gap) {
  const distance = (one, other) => (one.width + other.width) / 2 + (one.isBend && other.isBend ? LINE_GAP : gap);
  for (const layer of layers) {
    layer.forEach((node, place) => { node.x = place === 0 ? 0 : layer[place - 1].x + distance(layer[place - 1], node); });
    const middle = layer.length > 0 ? (layer[0].x + layer.at(-1).x) / 2 : 0;
    for (const node of layer) node.x -= middle;
  }
  for (let sweep = 0; sweep < 5 * SWEEPS; sweep += 1) {
    for (const layer of sweep % 2 === 0 ? layers : [...layers].reverse()) {
      const wishes = layer.map((node) => wish(node));
      const fromLeft = [...wishes];
      const fromRight = [...wishes];
      for (let place = 1; place < layer.length; place += 1) {
        fromLeft[place] = Math.max(wishes[place], fromLeft[place - 1] + distance(layer[place - 1], layer[place]));
      }
      for (let place = layer.length - 2; place >= 0; place -= 1) {
        fromRight[place] = Math.min(wishes[place], fromRight[place + 1] - distance(layer[place], layer[place + 1]));
      }
      layer.forEach((node, place) => { node.x = (fromLeft[place] + fromRight[place]) / 2; });
    }
  }
}

/** Make long edges that run beside all nodes straight; what runs outside of them moves further outside. */
function straighten(layers, edges) {
  const chains = edges.map((edge) => edge.chain.slice(1, -1)).filter((bends) => bends.length > 1);
  chains.sort((one, other) => one.length - other.length);
  for (const bends of chains) {
    const rows = bends.map((bend) => layers.find((layer) => layer.includes(bend)));
    for (const side of [1, -1]) {
      const outside = rows.map((row, at) => (side > 0 ? row : [...row].reverse()).slice(rankFrom(row, bends[at], side)));
      if (!outside.every((nodes) => nodes.every((node) => node.isBend))) continue;
      const x = side * Math.max(...bends.map((bend) => side * bend.x));
      for (const nodes of outside) {
        nodes.forEach((node, at) => { node.x = side * Math.max(side * node.x, side * x + at * LINE_GAP); });
      }
      break;
    }
  }
}

function rankFrom(row, node, side) {
  const place = row.indexOf(node);
  return side > 0 ? place : row.length - 1 - place;
}

/** Return where a node is best placed. A line that passes several layers is to be straight. */
function wish(node) {
  const near = [...node.before, ...node.after];
  const weight = (other) => (node.isBend && other.isBend ? STRAIGHT : 1);
  // a weak pull to the middle keeps a long picture narrow
  const total = near.reduce((sum, other) => sum + weight(other), MIDDLE);
  return near.length > 0 ? near.reduce((sum, other) => sum + weight(other) * other.x, 0) / total : node.x;
}

function placeDown(layers) {
  let y = MARGIN;
  for (const layer of layers) {
    const height = Math.max(0, ...layer.map((node) => node.height));
    for (const node of layer) {
      node.y = y + (height - node.height) / 2;
      [node.top, node.bottom] = [y, y + height];
    }
    y += height + LABEL_ROOM;
  }
}

/** Move everything to positive coordinates, and give ports, edges and labels their places. */
function bounded(nodes, edges, layers) {
  const every = layers.flat();
  const left = Math.min(...every.map((node) => node.x - node.width / 2)) - 6;
  for (const node of every) node.x -= left;
  for (const node of nodes) {
    const room = node.ports.reduce((sum, port) => sum + port.width, 0);
    let x = node.x - room / 2;
    for (const port of node.ports) {
      port.x = node.ports.length === 1 ? node.x : x + 4;
      x += port.width;
    }
  }
  for (const node of nodes) {
    const arriving = edges.filter((edge) => edge.chain.at(-1) === node);
    arriving.sort((one, other) => one.chain.at(-2).x - other.chain.at(-2).x);
    arriving.forEach((edge, place) => {
      edge.end = node.x + node.width * 0.6 * ((place + 1) / (arriving.length + 1) - 0.5);
    });
  }
  for (const edge of edges) edge.path = pathOf(edge);
  return {
    nodes,
    edges,
    width: Math.max(...every.map((node) => node.x + node.width / 2)) + 6,
    height: Math.max(...every.map((node) => node.bottom)) + MARGIN,
  };
}

function pathOf(edge) {
  const [source, target] = [edge.chain[0], edge.chain.at(-1)];
  const port = source.ports.find((one) => one.signature === edge.signature);
  // the line is straight beside its label, which would hide it otherwise
  let [x, y] = [port.x, source.y + source.height + LABEL_HEIGHT];
  let path = `M${x} ${y - LABEL_HEIGHT} V${y}`;
  const curve = (toX, toY) => {
    const middle = y < toY ? (y + toY) / 2 + 4 : y + 30;
    path += ` C${x} ${middle + 6} ${toX} ${middle - 2} ${toX} ${toY}`;
    [x, y] = [toX, toY];
  };
  for (const bend of edge.chain.slice(1, -1)) {
    curve(bend.x, bend.top);
    path += ` V${bend.bottom}`;
    y = bend.bottom;
  }
  curve(edge.end, target.y - 2);
  return path;
}
