// A heat map with its tokens: one canvas for the cells, one SVG for the labels and the cross-hair.

import { announce, cut, el, number, svg, tokenName } from "./dom.js";
import { paint, shade } from "./matrix.js";

const LABEL = 12; // the height of a label, in pixels
const LEGIBLE = 12; // cells smaller than this have no labels
const VECTOR_CELLS = 4096; // as many cells are exported as rectangles, more as a picture

const measure = document.createElement("canvas").getContext("2d");

/** How wide a text is in a font of the style sheet, "sans" or "serif". */
export function textWidth(text, size = LABEL, font = "sans") {
  measure.font = `${size}px ${getComputedStyle(document.documentElement).getPropertyValue(`--${font}`)}`;
  return measure.measureText(text).width;
}

export class HeatMap {
  /** `look(row, column)` is told where the pointer is, or (null, null). */
  constructor({ label, look = () => {}, max = 30, square = true, digits = 3 }) {
    this.look = look;
    this.max = max;
    this.square = square;
    this.digits = digits;
    this.cursor = [0, 0];
    this.canvas = el("canvas", {
      class: "cells",
      tabindex: 0,
      role: "img",
      "aria-label": label,
      on: {
        pointermove: (event) => this.point(event),
        pointerleave: () => this.leave(),
        keydown: (event) => this.key(event),
        blur: () => this.leave(),
      },
    });
    this.marks = svg("svg", { class: "marks", "aria-hidden": "true" });
    this.plate = el("div", { class: "plate" }, this.canvas, this.marks);
    this.said = el("p", { class: "readout" }, " ");
    this.node = el("div", { class: "heat" }, el("div", { class: "scroll" }, this.plate), this.said);
    this.canvas.vector = () => this.vector();
  }

  /** Draw a matrix with the names of its rows and columns into a width. */
  draw(matrix, rows, columns, width) {
    const relabel = this.rows !== rows || this.columns !== columns || this.width !== width;
    this.matrix = matrix;
    paint(this.canvas, matrix);
    if (!relabel) return;
    [this.rows, this.columns, this.width] = [rows, columns, width];
    const rowNames = rows.map((name) => cut(tokenName(name), 18));
    const columnNames = columns.map((name) => cut(tokenName(name), 18));
    const widest = (names) =>
      Math.ceil(Math.max(8, ...names.slice(0, 200).map((name) => textWidth(name)))) + 8;
    let left = rows.length ? widest(rowNames) : 0;
    let top = columns.length ? widest(columnNames) : 0;
    const room = (names, margin) => Math.min(this.max, (width - margin) / Math.max(1, names));
    let across = room(matrix.columns, left);
    let down = this.square ? across : Math.min(this.max, 22);
    if (this.square && matrix.rows * down > 900) down = Math.max(900 / matrix.rows, 1);
    if (across < LEGIBLE && matrix.columns <= 120) across = LEGIBLE; // it scrolls sideways
    if (across < LEGIBLE) top = 0;
    if (down < LEGIBLE && matrix.rows <= 120) down = LEGIBLE;
    if (down < LEGIBLE) left = 0;
    if (!left && !top && this.square)
      across = down = Math.max(1, Math.min(across, width / matrix.columns));
    Object.assign(this, { left, top, across, down });
    const [w, h] = [across * matrix.columns, down * matrix.rows];
    for (const [key, value] of Object.entries({ left, top, width: w, height: h }))
      this.canvas.style.setProperty(key, `${value}px`);
    this.plate.style.width = `${left + w}px`;
    this.plate.style.height = `${top + h}px`;
    this.marks.setAttribute("viewBox", `0 0 ${left + w} ${top + h}`);
    this.marks.setAttribute("width", left + w);
    this.marks.setAttribute("height", top + h);
    this.rowMarks = left
      ? rowNames.map((name, r) =>
          svg("text", { x: left - 6, y: top + (r + 0.5) * down, class: "rowname" }, name),
        )
      : [];
    this.columnMarks = top
      ? columnNames.map((name, c) => {
          const x = left + (c + 0.5) * across;
          return svg(
            "text",
            { x, y: top - 6, transform: `rotate(-90 ${x} ${top - 6})`, class: "columnname" },
            name,
          );
        })
      : [];
    this.cross = [svg("rect", { class: "cross" }), svg("rect", { class: "cross" })];
    this.marks.replaceChildren(...this.rowMarks, ...this.columnMarks, ...this.cross);
    this.light(null, null);
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.matrix.rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.matrix.columns);
    if (row < 0 || column < 0 || row >= this.matrix.rows || column >= this.matrix.columns) return;
    this.light(row, column);
    this.look(row, column);
  }

  leave() {
    this.light(null, null);
    this.look(null, null);
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const clamp = (x, most) => Math.max(0, Math.min(most - 1, x));
    this.cursor = [
      clamp(this.cursor[0] + move[0], this.matrix.rows),
      clamp(this.cursor[1] + move[1], this.matrix.columns),
    ];
    this.light(...this.cursor);
    this.look(...this.cursor);
    announce(this.said.textContent);
  }

  /** Mark a row, a column or both. */
  light(row, column) {
    const { left, top, across, down, matrix } = this;
    const place = (rect, x, y, w, h, on) => {
      rect.setAttribute("visibility", on ? "visible" : "hidden");
      for (const [key, value] of Object.entries({ x, y, width: w, height: h }))
        rect.setAttribute(key, value);
    };
    if (row !== null) this.cursor[0] = row;
    if (column !== null) this.cursor[1] = column;
    place(
      this.cross[0],
      left,
      top + (row ?? 0) * down,
      across * matrix.columns,
      down,
      row !== null,
    );
    place(
      this.cross[1],
      left + (column ?? 0) * across,
      top,
      across,
      down * matrix.rows,
      column !== null,
    );
    this.rowMarks.forEach((mark, r) => mark.classList.toggle("lit", r === row));
    this.columnMarks.forEach((mark, c) => mark.classList.toggle("lit", c === column));
    const name = (names, i) => (names.length ? tokenName(names[i] ?? "") : String(i + 1));
    this.said.textContent =
      row === null || column === null
        ? " "
        : `${name(this.rows, row)} → ${name(this.columns, column)}  ${number(matrix.at(row, column), this.digits)}`;
  }

  /** The cells for an exported picture: rectangles where there are few, else null for the pixels. */
  vector() {
    const { matrix, across, down } = this;
    if (matrix.values.length > VECTOR_CELLS) return null;
    const group = svg("g", {});
    const most = Math.max(matrix.max, -matrix.min);
    for (let r = 0; r < matrix.rows; r++)
      for (let c = 0; c < matrix.columns; c++)
        group.append(
          svg("rect", {
            x: c * across,
            y: r * down,
            width: across + 0.2,
            height: down + 0.2,
            fill: shade(matrix.at(r, c), most),
          }),
        );
    return group;
  }
}
