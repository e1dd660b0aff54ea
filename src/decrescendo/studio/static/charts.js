// Nodes of the page, and curves as SVG.
"use strict";
const $ = (id) => document.getElementById(id);
const make = (tag, facts = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), facts);
  node.append(...children);
  return node;
};

const draw = (tag, facts, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(facts)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
function ticks(low, high, about = 5) {
  const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i++) found.push(Number((i * step).toPrecision(10)));
  return found;
}
const plain = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(0) : value.toLocaleString("en", { maximumSignificantDigits: 4 }));
function chart({ title, x: axis, blind, limit, stairs }, lines) {
  const wide = 330, high = 200, [left, right, top, bottom] = [42, 16, 8, 34];
  const xs = lines.flatMap(({ points }) => points[0]), ys = lines.flatMap(({ points }) => points[1]);
  const low = blind ? 0 : Math.min(...xs), end = Math.max(...xs, low + 1e-9), most = Math.max(...ys, limit ?? 0) * 1.04 || 1;
  const X = (x) => left + ((x - low) / (end - low || 1)) * (wide - left - right);
  const Y = (y) => high - bottom - (y / most) * (high - top - bottom);
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title });
  for (const y of ticks(0, most)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: wide - right, y1: Y(y), y2: Y(y) }));
    svg.append(draw("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, plain(y)));
  }
  // Steps and runs are whole.
  for (const x of ticks(low, end).filter((at) => blind || Number.isInteger(at))) svg.append(draw("text", { x: X(x), y: high - bottom + 15, "text-anchor": "middle" }, plain(x)));
  svg.append(draw("text", { x: (left + wide - right) / 2, y: high - 4, "text-anchor": "middle" }, axis));
  if (blind) svg.append(draw("path", { class: "blind", d: `M${X(0)} ${Y(0)}L${X(1)} ${Y(1)}` }));
  if (limit) svg.append(draw("path", { class: "blind", d: `M${left} ${Y(limit)}H${wide - right}` }));
  for (const { style, points } of lines) {
    const at = points[0].map((x, i) => (stairs && i ? `V${Y(points[1][i]).toFixed(1)}H${X(x).toFixed(1)}` : `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(points[1][i]).toFixed(1)}`));
    svg.append(draw("path", { class: style, d: at.join("") + (at.length === 1 ? "h3" : "") }));
  }
  const ends = (points) => (points[1][0] === points[1].at(-1) ? plain(points[1][0]) : `${plain(points[1][0])} → ${plain(points[1].at(-1))}`);
  const rest = blind ? "dotted: guessing blindly" : lines.map(({ points }) => ends(points)).reverse().join("  ·  kept ");
  const told = make("small", { textContent: rest });
  const cross = draw("line", { class: "cross", y1: top, y2: high - bottom, visibility: "hidden" });
  svg.append(cross);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), x = low + (((event.clientX - box.left) / box.width) * wide - left) / (wide - left - right) * (end - low);
    const near = lines.map(({ points }) => points[0].reduce((best, one, i) => (Math.abs(one - x) < Math.abs(points[0][best] - x) ? i : best), 0));
    const main = lines.length - 1, at = lines[main].points[0][near[main]];
    told.textContent = `${axis} ${plain(at)}: ` + lines.map(({ points }, i) => plain(points[1][near[i]])).reverse().join("  ·  kept ");
    for (const side of ["x1", "x2"]) cross.setAttribute(side, X(at));
    cross.setAttribute("visibility", "visible");
  });
  svg.addEventListener("pointerleave", () => (cross.setAttribute("visibility", "hidden"), (told.textContent = rest)));
  return make("figure", {}, make("figcaption", { textContent: title }, told), svg);
}
