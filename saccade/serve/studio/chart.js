// Lines over numbers: axes with round ticks, names at the ends of the lines, values under the pointer.

import { el, number, svg } from "./dom.js";

const MARGIN = { top: 12, right: 84, bottom: 38, left: 46 };

export function ticks(low, high, about = 4) {
  const span = high - low || 1;
  const raw = span / about;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((k) => k * unit >= raw * 0.999);
  const found = [];
  found.step = step;
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step)
    found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return found;
}

function tickText(x, step) {
  if (x === 0) return "0";
  const text =
    Math.abs(x) >= 1e4
      ? `${x / 1000}k`
      : x.toFixed(Math.max(0, Math.min(7, -Math.floor(Math.log10(step || 1) + 1e-9))));
  return text.replace("-", "−");
}

const joined = (points) =>
  points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/**
 * lines: [{name, kind, points: [[x, y]], dots}], bands: [{points: [[x, low, high]]}]; `divider` is an x to mark.
 */
export function lineChart({
  lines,
  bands = [],
  width,
  height = 210,
  label,
  x = "",
  divider = null,
}) {
  const all = [
    ...lines.flatMap((line) => line.points),
    ...bands.flatMap((band) =>
      band.points.flatMap(([at, low, high]) => [
        [at, low],
        [at, high],
      ]),
    ),
  ].filter(([, y]) => Number.isFinite(y));
  if (!all.length) return el("p", { class: "hint" }, "There is nothing to draw yet.");
  const named = lines.some((line) => line.name);
  const margin = { ...MARGIN, right: named ? Math.min(MARGIN.right, width / 5) : 40 };
  const least = (k) => all.reduce((low, point) => Math.min(low, point[k]), Infinity);
  const most = (k) => all.reduce((high, point) => Math.max(high, point[k]), -Infinity);
  let [x0, x1, y0, y1] = [least(0), most(0), least(1), most(1)];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = [y0 - 0.5, y1 + 0.5];
  const [w, h] = [
    Math.max(60, width - margin.left - margin.right),
    height - margin.top - margin.bottom,
  ];
  const px = (value) => margin.left + ((value - x0) / (x1 - x0)) * w;
  const py = (value) => margin.top + (1 - (value - y0) / (y1 - y0)) * h;
  const yTicks = ticks(y0, y1);
  const xTicks = ticks(x0, x1, Math.max(2, Math.round(w / 110)));
  const root = svg("svg", {
    class: "chart",
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": label,
  });
  for (const at of yTicks)
    root.append(
      svg("path", { class: "rule", d: `M${margin.left} ${py(at)}h${w}` }),
      svg(
        "text",
        {
          class: "tick",
          x: margin.left - 6,
          y: py(at),
          "text-anchor": "end",
          "dominant-baseline": "central",
        },
        tickText(at, yTicks.step),
      ),
    );
  for (const at of xTicks)
    root.append(
      svg(
        "text",
        {
          class: "tick",
          x: px(at),
          y: height - margin.bottom + 14,
          "text-anchor": "middle",
          "dominant-baseline": "central",
        },
        tickText(at, xTicks.step),
      ),
    );
  if (x)
    root.append(
      svg(
        "text",
        {
          class: "tick",
          x: width - 2,
          y: height - 6,
          "text-anchor": "end",
          "dominant-baseline": "central",
        },
        x,
      ),
    );
  for (const band of bands) {
    const there = band.points.map(([at, , high]) => [px(at), py(high)]);
    const back = band.points.map(([at, low]) => [px(at), py(low)]).reverse();
    root.append(
      svg("path", { class: `band ${band.kind ?? ""}`, d: `${joined([...there, ...back])}Z` }),
    );
  }
  if (divider !== null)
    root.append(svg("path", { class: "divider", d: `M${px(divider)} ${margin.top}v${h}` }));
  const ends = [];
  for (const line of lines) {
    const points = line.points
      .filter(([, y]) => Number.isFinite(y))
      .map(([a, b]) => [px(a), py(b)]);
    if (!points.length) continue;
    root.append(svg("path", { class: `line ${line.kind ?? ""}`, d: joined(points) }));
    if (line.dots || points.length === 1)
      root.append(
        ...points.map(([cx, cy]) =>
          svg("circle", { class: `dot ${line.kind ?? ""}`, cx, cy, r: 2.4 }),
        ),
      );
    if (line.name) ends.push([points.at(-1)[1], line]);
  }
  ends.sort((a, b) => a[0] - b[0]);
  let free = -Infinity;
  for (const [y, line] of ends) {
    const at = Math.max(y, free + 13);
    free = at;
    root.append(
      svg(
        "text",
        {
          class: `name ${line.kind ?? ""}`,
          x: margin.left + w + 6,
          y: at,
          "dominant-baseline": "central",
        },
        line.name,
      ),
    );
  }
  const cursor = svg("path", { class: "cursor", visibility: "hidden" });
  root.append(cursor);
  const said = el("p", { class: "readout" }, " ");
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const at =
      x0 + (((event.clientX - box.left) * (width / box.width) - margin.left) / w) * (x1 - x0);
    if (at < x0 || at > x1) return;
    const near = lines.map((line) =>
      line.points.reduce(
        (best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best),
        line.points[0] ?? [NaN, NaN],
      ),
    );
    if (!near.length || !Number.isFinite(near[0][0])) return;
    cursor.setAttribute("d", `M${px(near[0][0])} ${margin.top}v${h}`);
    cursor.setAttribute("visibility", "visible");
    said.textContent = `${x || "x"} ${number(near[0][0], 0)}: ${lines.map((line, i) => `${line.name ? `${line.name} ` : ""}${number(near[i][1], 3)}`).join(", ")}`;
  });
  root.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    said.textContent = " ";
  });
  return el("figure", { class: "plot" }, root, said);
}
