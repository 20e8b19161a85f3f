// Lines over time as SVG. One element per line, changed in place.

import { element, setText, svgElement } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 90;

// `lines`: the names of the lines, the first the most important. `format` turns a value into text.
export class Chart {
  constructor(title, lines, { seconds, format, atLeast = 1 }) {
    this.seconds = seconds;
    this.format = format;
    this.atLeast = atLeast;
    this.top = element("span", { className: "scale" });
    this.paths = lines.map((_, index) => svgElement("path", { class: `line line-${index}` }));
    this.values = lines.map(() => element("b"));
    const keys = lines.map((name, index) =>
      element("span", { className: `key line-${index}` }, name, " ", this.values[index]),
    );
    this.drawing = svgElement(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      svgElement("path", { class: "grid", d: `M0 ${HEIGHT / 2}H${WIDTH}M0 1H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` }),
      ...this.paths,
    );
    this.root = element(
      "figure",
      { className: "chart" },
      element("figcaption", {}, element("h3", { textContent: title }), element("span", { className: "keys" }, ...keys)),
      element("div", { className: "drawing" }, this.top, this.drawing),
    );
  }

  // One list of `{ time, value }` for each line; a value of null is a gap.
  draw(series, now) {
    const values = series.flat().map(({ value }) => value ?? 0);
    const top = roundedUp(Math.max(this.atLeast, ...values));
    setText(this.top, this.format(top));
    series.forEach((points, index) => {
      this.paths[index].setAttribute("d", pathOf(points, now, this.seconds, top));
      setText(this.values[index], this.format(points.at(-1)?.value ?? null));
    });
  }
}

function pathOf(points, now, seconds, top) {
  let isDown = false;
  const steps = points.map(({ time, value }) => {
    if (value === null) {
      isDown = false;
      return "";
    }
    const x = WIDTH * (1 - (now - time) / seconds);
    const y = HEIGHT - 1 - (HEIGHT - 2) * (value / top);
    const step = `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
    return step;
  });
  return steps.join("");
}

// 1, 2 or 5 times a power of ten, so that the scale changes seldom.
function roundedUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * unit).find((end) => end >= value * 0.9999);
}
