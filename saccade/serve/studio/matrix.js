// Matrices as the server sends them, and their colours.

/** Rows and columns of numbers: nested lists, or bytes in base64 with the values of 0 and 255. */
export function readMatrix(json) {
  if (Array.isArray(json)) {
    const rows = json.length;
    const columns = rows ? json[0].length : 0;
    const values = new Float32Array(rows * columns);
    json.forEach((row, r) => values.set(row, r * columns));
    return new Matrix(rows, columns, values);
  }
  const [rows, columns] = json.shape;
  const text = atob(json.u8);
  const least = json.min ?? 0;
  const known = Float32Array.from({ length: 256 }, (_, i) => least + (i * (json.max - least)) / 255);
  const values = new Float32Array(rows * columns);
  for (let i = 0; i < values.length; i++) values[i] = known[text.charCodeAt(i)];
  return new Matrix(rows, columns, values);
}

export class Matrix {
  constructor(rows, columns, values) {
    this.rows = rows;
    this.columns = columns;
    this.values = values;
    let max = 0;
    let min = 0;
    for (let i = 0; i < values.length; i++) {
      if (values[i] > max) max = values[i];
      if (values[i] < min) min = values[i];
    }
    this.max = max;
    this.min = min;
  }

  at(row, column) {
    return this.values[row * this.columns + column];
  }
}

// ---- colours: from the page's paper to its accent, read from the style sheet so that both themes fit

const channels = (name) => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  probe.fillStyle = name;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
};

/** A colour of the style sheet as the browser computes it, for canvases. */
export function ink(name) {
  const probe = document.getElementById("probe");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const blend = (a, b, t) => a.map((x, i) => Math.round(x + (b[i] - x) * t));
let ramps = null;

export const forgetColours = () => (ramps = null);

/** 256 colours for 0 to the most, and 256 for 0 to the least of signed numbers. */
export function colours() {
  if (ramps) return ramps;
  const [paper, accent, deep, counter] = ["sheet", "accent", "deep", "counter"].map((name) =>
    channels(ink(name)),
  );
  const ramp = (end, beyond) =>
    Array.from({ length: 256 }, (_, i) => {
      const t = (i / 255) ** 0.62; // small weights are to be seen
      return t < 0.7 ? blend(paper, end, t / 0.7) : blend(end, beyond, (t - 0.7) / 0.3);
    });
  const [up, down] = [ramp(accent, deep), ramp(counter, counter)];
  // the same as pixels: those below 0, from the least on, then those from 0 on
  const bytes = [...down.toReversed(), ...up].flatMap((colour) => [...colour, 255]);
  ramps = { up, down, pixels: new Uint32Array(Uint8ClampedArray.from(bytes).buffer) };
  return ramps;
}

/** The colour of a value between 0 and its most (or below 0). */
export function shade(value, most) {
  const { up, down } = colours();
  const i = Math.max(0, Math.min(255, Math.round((255 * Math.abs(value)) / (most || 1))));
  return `rgb(${(value < 0 ? down : up)[i].join(" ")})`;
}

/** One pixel a cell, into a canvas of exactly that size. */
export function paint(canvas, matrix, most = 0) {
  canvas.width = Math.max(1, matrix.columns);
  canvas.height = Math.max(1, matrix.rows);
  if (!matrix.values.length) return;
  const context = canvas.getContext("2d");
  context.putImageData(pixels(context, matrix, most), 0, 0);
}

export function pixels(context, matrix, most = 0) {
  const { pixels: colour } = colours();
  const image = context.createImageData(matrix.columns, matrix.rows);
  const cells = new Uint32Array(image.data.buffer);
  const { values } = matrix;
  const scale = 255 / (most || Math.max(matrix.max, -matrix.min) || 1);
  for (let i = 0; i < values.length; i++) {
    const level = Math.min(255, Math.round(Math.abs(values[i]) * scale));
    cells[i] = colour[values[i] < 0 ? 255 - level : 256 + level];
  }
  return image;
}
