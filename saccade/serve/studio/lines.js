// Attention as lines: what is said on the right, what it looked at on the left.

import { cut, el, svg, tokenName } from "./dom.js";
import { ink } from "./matrix.js";

const MOST_LINES = 1500; // with more, only the strongest of each row
const TALL = 3000; // pixels, beyond which a canvas is no finer than the screen
const FAINT = 0.03; // of a row's strongest: not drawn

const opacity = (share) => Math.min(1, 0.04 + 0.96 * share ** 1.3);

export class Lines {
  /** `look(side, index)` is told which token the pointer is on: "row", "column" or null. */
  constructor({ label, look = () => {} }) {
    this.look = look;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.left = el("ol", { class: "ends left", "aria-label": "looked at" });
    this.right = el("ol", { class: "ends right", "aria-label": "looking" });
    this.node = el(
      "div",
      { class: "lines scroll", role: "group", "aria-label": label },
      el("div", { class: "strands" }, this.left, this.canvas, this.right),
    );
    this.lit = { side: null, index: null };
    this.canvas.vector = () => this.vector();
  }

  draw(matrix, rows, columns) {
    const renamed = this.rows !== rows || this.columns !== columns;
    this.matrix = matrix;
    if (renamed) {
      [this.rows, this.columns] = [rows, columns];
      const most = Math.max(rows.length, columns.length);
      this.step = most > 200 ? 15 : most > 60 ? 18 : 23;
      this.height = most * this.step;
      this.node.style.setProperty("--step", `${this.step}px`);
      this.items = {
        column: this.ends(this.left, columns, "column"),
        row: this.ends(this.right, rows, "row"),
      };
    }
    this.strands = this.strongest();
    this.paint();
  }

  ends(list, names, side) {
    const items = names.map((name, i) =>
      el(
        "li",
        {
          tabindex: i === 0 ? 0 : -1,
          on: {
            pointerenter: () => this.point(side, i),
            pointerleave: () => this.point(null, null),
            focus: () => this.point(side, i),
            blur: () => this.point(null, null),
            keydown: (event) => {
              const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
              const next = move && items[i + move];
              if (!next) return;
              event.preventDefault();
              items[i].tabIndex = -1;
              next.tabIndex = 0;
              next.focus();
            },
          },
        },
        cut(tokenName(name), 18),
      ),
    );
    list.replaceChildren(...items);
    return items;
  }

  point(side, index) {
    this.light(side, index);
    this.look(side, index);
  }

  light(side, index) {
    if (this.lit.side === side && this.lit.index === index) return;
    this.lit = { side, index };
    this.paint();
  }

  /** The lines worth drawing: [row, column, weight], the weak first. */
  strongest() {
    const { rows, columns, values } = this.matrix;
    const each = Math.max(1, Math.floor(MOST_LINES / Math.max(1, rows)));
    const kept = new Int32Array(Math.min(each, columns)); // columns of a row, the strongest first
    const found = [];
    this.peaks = new Float32Array(rows);
    for (let r = 0; r < rows; r++) {
      const row = values.subarray(r * columns, (r + 1) * columns);
      let most = 0;
      for (let c = 0; c < columns; c++) if (row[c] > most) most = row[c];
      this.peaks[r] = most;
      const floor = Math.max(FAINT * most, columns > each ? most / each : 0);
      let count = 0;
      for (let c = 0; c < columns; c++) {
        const weight = row[c];
        if (weight <= floor || (count === kept.length && weight <= row[kept[count - 1]])) continue;
        let place = count < kept.length ? count++ : count - 1;
        for (; place > 0 && row[kept[place - 1]] < weight; place--) kept[place] = kept[place - 1];
        kept[place] = c;
      }
      for (let k = 0; k < count; k++) found.push([r, kept[k], row[kept[k]]]);
    }
    return found.sort((a, b) => a[2] - b[2]);
  }

  shownStrands() {
    const { side, index } = this.lit;
    if (side === null) return this.strands;
    if (side === "row") {
      const all = Array.from({ length: this.matrix.columns }, (_, c) => [
        index,
        c,
        this.matrix.at(index, c),
      ]);
      return all.filter(([, , w]) => w > 0.002);
    }
    const all = Array.from({ length: this.matrix.rows }, (_, r) => [
      r,
      index,
      this.matrix.at(r, index),
    ]);
    return all.filter(([, , w]) => w > 0.002);
  }

  /** How strong a line is: between its share of its row's strongest and that of all, so that even rows are seen. */
  share([r, , weight]) {
    return weight / (Math.sqrt(this.peaks[r] * this.matrix.max) || 1);
  }

  curve([r, c]) {
    const [w, s] = [this.width, this.step];
    return [0, (c + 0.5) * s, w / 2, (c + 0.5) * s, w / 2, (r + 0.5) * s, w, (r + 0.5) * s];
  }

  paint() {
    const { canvas, height, lit } = this;
    this.width = 150;
    const dense = height > TALL ? 1 : Math.max(2, devicePixelRatio);
    canvas.width = Math.round(this.width * dense);
    canvas.height = Math.max(1, Math.round(height * dense));
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(dense, dense);
    context.strokeStyle = ink("accent");
    const most = this.matrix.max || 1;
    for (const strand of this.shownStrands()) {
      const share = this.share(strand);
      const [x0, y0, x1, y1, x2, y2, x3, y3] = this.curve(strand);
      context.globalAlpha = opacity(share);
      context.lineWidth = 0.6 + 2.2 * share;
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x1, y1, x2, y2, x3, y3);
      context.stroke();
    }
    if (lit.side === null && !this.marked) return; // no token is marked, and none was
    this.marked = lit.side !== null;
    const weight = (side, i) => {
      if (lit.side === null) return 0;
      if (lit.side === side) return i === lit.index ? 1 : 0;
      return side === "column"
        ? this.matrix.at(lit.index, i) / most
        : this.matrix.at(i, lit.index) / most;
    };
    for (const side of ["row", "column"])
      this.items[side].forEach((item, i) => {
        item.classList.toggle("lit", lit.side === side && lit.index === i);
        item.style.setProperty("--weight", weight(side, i).toFixed(3));
      });
  }

  vector() {
    const group = svg("g", { fill: "none", stroke: ink("accent") });
    for (const strand of this.shownStrands()) {
      const share = this.share(strand);
      const [x0, y0, ...rest] = this.curve(strand);
      group.append(
        svg("path", {
          d: `M${x0} ${y0}C${rest.join(" ")}`,
          "stroke-opacity": opacity(share).toFixed(3),
          "stroke-width": (0.6 + 2.2 * share).toFixed(2),
        }),
      );
    }
    return group;
  }
}
