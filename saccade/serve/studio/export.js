// A view as a file: what is on the page, walked and written down as SVG; a PNG of that; its data as JSON.

import { spelled, svg } from "./dom.js";

const CLEAR = "rgba(0, 0, 0, 0)";
const PAD = 16;
const TEXT_STYLE = ["font-family", "font-size", "font-weight", "font-style", "letter-spacing"];
const SHAPE_STYLE = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "fill-opacity",
  "opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "text-anchor",
  "dominant-baseline",
  "visibility",
  ...TEXT_STYLE,
];

/** The element as an SVG of its own, in the page's present colours. */
export function toSvg(root) {
  const frame = root.getBoundingClientRect();
  const size = {
    width: Math.ceil(root.scrollWidth) + 2 * PAD,
    height: Math.ceil(root.scrollHeight) + 2 * PAD,
  };
  const out = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    viewBox: `0 0 ${size.width} ${size.height}`,
    ...size,
  });
  const paper = getComputedStyle(document.body).backgroundColor;
  out.append(svg("rect", { width: size.width, height: size.height, fill: paper }));
  const at = (box) => [box.left - frame.left + PAD, box.top - frame.top + PAD];
  walk(root, out, at);
  return { out, ...size };
}

function walk(node, out, at) {
  if (node.nodeType === Node.TEXT_NODE) return writeText(node, out, at);
  if (node.nodeType !== Node.ELEMENT_NODE || node.hasAttribute("data-no-export")) return;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden") return;
  const box = node.getBoundingClientRect();
  const [x, y] = at(box);
  if (node instanceof SVGSVGElement) return out.append(copySvg(node, x, y, box));
  const opacity = Number(style.opacity);
  const group = opacity < 1 ? svg("g", { opacity }) : out;
  if (group !== out) out.append(group);
  if (style.backgroundColor !== CLEAR && box.width && box.height)
    group.append(
      svg("rect", {
        x,
        y,
        width: box.width,
        height: box.height,
        rx: parseFloat(style.borderRadius) || 0,
        fill: style.backgroundColor,
      }),
    );
  for (const [side, rect] of [
    ["Bottom", [x, y + box.height, box.width, 0]],
    ["Top", [x, y, box.width, 0]],
    ["Left", [x, y, 0, box.height]],
  ]) {
    const thick = parseFloat(style[`border${side}Width`]);
    const colour = style[`border${side}Color`];
    if (!thick || colour === CLEAR || style[`border${side}Style`] === "none") continue;
    const [left, top, w, h] = rect;
    const shift = side === "Bottom" ? -thick : 0;
    group.append(
      svg("rect", { x: left, y: top + shift, width: w || thick, height: h || thick, fill: colour }),
    );
  }
  if (node instanceof HTMLCanvasElement || node instanceof HTMLImageElement)
    return group.append(picture(node, x, y, box));
  if (
    node instanceof HTMLInputElement ||
    node instanceof HTMLSelectElement ||
    node instanceof HTMLTextAreaElement
  )
    return writeValue(node, group, x, y, box, style);
  for (const child of node.childNodes) walk(child, group, at);
}

function picture(node, x, y, box) {
  const drawn = node.vector?.();
  if (drawn) {
    drawn.setAttribute("transform", `translate(${x} ${y})`);
    return drawn;
  }
  let href = node.src;
  if (node instanceof HTMLCanvasElement) href = node.toDataURL("image/png");
  const image = svg("image", {
    x,
    y,
    width: box.width,
    height: box.height,
    href,
    preserveAspectRatio: "none",
  });
  image.setAttribute("image-rendering", node.classList.contains("cells") ? "pixelated" : "auto");
  return image;
}

function copySvg(node, x, y, box) {
  const copy = node.cloneNode(true);
  const [from, to] = [
    [node, ...node.querySelectorAll("*")],
    [copy, ...copy.querySelectorAll("*")],
  ];
  from.forEach((one, i) => {
    const style = getComputedStyle(one);
    for (const key of SHAPE_STYLE) {
      const value = style.getPropertyValue(key);
      if (value) to[i].setAttribute(key, value);
    }
    to[i].removeAttribute("class");
    to[i].removeAttribute("style");
  });
  for (const [key, value] of Object.entries({ x, y, width: box.width, height: box.height }))
    copy.setAttribute(key, value);
  return copy;
}

function writeText(node, out, at) {
  const text = node.nodeValue;
  if (!text.trim()) return;
  const style = getComputedStyle(node.parentElement);
  const range = document.createRange();
  const put = (start, end) => {
    range.setStart(node, start);
    range.setEnd(node, end);
    const box = range.getBoundingClientRect();
    const line = text.slice(start, end).replace(/\s+/g, " ").trim();
    if (!box.width || !line) return;
    const [x, y] = at(box);
    const size = parseFloat(style.fontSize);
    const mark = svg("text", {
      x,
      y: y + box.height / 2 + size * 0.34,
      fill: style.color,
      textLength: box.width.toFixed(1),
      lengthAdjust: "spacingAndGlyphs",
    });
    for (const key of TEXT_STYLE) mark.setAttribute(key, style.getPropertyValue(key));
    mark.textContent = spelled(style.textTransform === "uppercase" ? line.toUpperCase() : line);
    out.append(mark);
  };
  range.selectNodeContents(node);
  if (range.getClientRects().length <= 1) return put(0, text.length);
  let [start, top] = [0, null]; // the text runs over several lines: one element for each
  for (let i = 0; i < text.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    if (top !== null && Math.abs(box.top - top) > 4) {
      put(start, i);
      start = i;
    }
    top = box.top;
  }
  put(start, text.length);
}

function writeValue(node, out, x, y, box, style) {
  const text =
    node instanceof HTMLSelectElement ? (node.selectedOptions[0]?.textContent ?? "") : node.value;
  if (node.type === "radio" || node.type === "checkbox" || node.type === "range") return;
  const mark = svg("text", {
    x: x + parseFloat(style.paddingLeft),
    y: y + box.height / 2,
    "dominant-baseline": "central",
    fill: style.color,
  });
  for (const key of TEXT_STYLE) mark.setAttribute(key, style.getPropertyValue(key));
  mark.textContent = spelled(text);
  out.append(mark);
}

export const svgText = (root) =>
  `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(toSvg(root).out)}`;

/** A PNG of the element, at twice its size. */
export async function toPng(root) {
  const { out, width, height } = toSvg(root);
  const url = URL.createObjectURL(
    new Blob([new XMLSerializer().serializeToString(out)], { type: "image/svg+xml" }),
  );
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const scale = Math.min(2, 16000 / Math.max(width, height));
    const canvas = document.createElement("canvas");
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(url);
  }
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export async function exportView(root, data, name, format) {
  if (format === "json")
    save(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }), `${name}.json`);
  else if (format === "svg")
    save(new Blob([svgText(root)], { type: "image/svg+xml" }), `${name}.svg`);
  else save(await toPng(root), `${name}.png`);
}
