// Elements of the page. Texts become text nodes only, so that nothing in them is markup.

"use strict";

const SVG = "http://www.w3.org/2000/svg";
const NAME = /[\p{L}_][\p{L}\p{N}_]*/gu;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== ""));
  return node;
}

/** Return an element with attributes and children; those that are null are left out. */
function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Return the attributes of a picture's part that is a button: for the mouse, the keyboard and screen readers. */
function asButton(label, act) {
  const onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  };
  return { tabindex: 0, role: "button", "aria-label": label, onclick: act, onkeydown };
}

/** Colours size symbols: each has one colour on the whole page. */
class Symbols {
  constructor(records) {
    this.classes = new Map(records.map(({ symbol, color }) => [symbol, `symbol s${color % 24}`]));
  }

  /** Return the parts of a formula or a signature, its symbols in elements of their colours. */
  parts(text, make = (name, attributes, content) => element("span", attributes, content)) {
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(NAME)) {
      const color = this.classes.get(match[0]);
      if (color === undefined) continue;
      parts.push(text.slice(end, match.index), make("span", { class: color }, match[0]));
      end = match.index + match[0].length;
    }
    return [...parts, text.slice(end)];
  }

  code(text) {
    return element("code", {}, this.parts(text));
  }

  /** Return the same parts for a text in a picture. */
  drawn(text) {
    return this.parts(text, (name, attributes, content) => svg("tspan", attributes, content));
  }
}

let lastId = 0;

/** Return an id that no other element of the page has. */
function newId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}
