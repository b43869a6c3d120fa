// How numbers are shown: as the tables of attnshape show them.

"use strict";

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const PREFIXES = ["k", "M", "G", "T", "P", "E"];
const UNKNOWN = "?";

/** Round half to even, as Python does; only a number whose double has so few binary digits can be halfway. */
function fixed(number, digits) {
  const scaled = number * 10 ** digits;
  const whole = Math.floor(scaled);
  if (Number.isInteger(number * 2 ** (digits + 1)) && scaled - whole === 0.5) {
    return ((whole + (whole % 2)) / 10 ** digits).toFixed(digits);
  }
  return number.toFixed(digits);
}

function grouped(text) {
  return text.replace(/\B(?=(\d{3})+$)/g, ",");
}

function scaledText(count, base, units, wholeFrom) {
  let amount = count / base;
  let power = 0;
  while (amount >= base - 0.5 && power < units.length - 1) {
    amount /= base;
    power += 1;
  }
  const number = amount < wholeFrom ? fixed(amount, 1).replace(/\.0$/, "") : grouped(fixed(amount, 0));
  return `${number} ${units[power]}`;
}

function formatBytes(count) {
  if (Number.isNaN(count)) return UNKNOWN;
  return count < 1024 ? `${count} B` : scaledText(count, 1024, UNITS, 9.95);
}

function formatCount(count) {
  if (Number.isNaN(count)) return UNKNOWN;
  return count < 10000 ? grouped(String(count)) : scaledText(count, 1000, PREFIXES, 99.95);
}

function formatRatio(ratio) {
  if (!Number.isFinite(ratio) || ratio === 0) return "";
  const digits = Math.max(1 - Math.floor(Math.log10(ratio)), 0);
  const number = String(Number(fixed(ratio, digits)));
  return ratio < 99.5 ? number : grouped(number);
}

/** Return a number of operations or bytes as the columns of costs show it. */
function formatCost(count, inBytes) {
  if (count === 0) return "0";
  return inBytes ? formatBytes(count) : formatCount(count);
}

function formatShape(shape) {
  return shape.map((size) => (Number.isNaN(size) ? UNKNOWN : String(size))).join(" ") || "()";
}
