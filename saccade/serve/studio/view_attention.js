// Attention: a grid of all heads, and of the chosen one the lines and the heat map, linked.

import { announce, choice, el, field, number, tokenName } from "./dom.js";
import { HeatMap } from "./heat.js";
import { Lines } from "./lines.js";
import { ink, pixels, readMatrix } from "./matrix.js";

const KEPT = 64; // maps that are remembered, so that going back is at once
const KINDS = {
  self: "to itself",
  cross: "to the source",
  recurrent: "to the source",
  pool: "of the output",
  copy: "copied from the source",
};

/** "Decoder 2" of decoder.body.layers.1.attention; the same number only once for each kind. */
function nameOf(module, modules) {
  const where = module.path.startsWith("encoder")
    ? "Encoder"
    : module.path.startsWith("decoder")
      ? "Decoder"
      : "Layer";
  const alike = modules.filter(
    (one) => one.type === module.type && one.path.split(".")[0] === module.path.split(".")[0],
  );
  const kinds = { cross: "Cross", recurrent: "Attention", pool: "Pool", copy: "Copy" };
  const kind = kinds[module.type] ?? where;
  return alike.length > 1 ? `${kind} ${alike.indexOf(module) + 1}` : kind;
}

/** The names of a module's rows or columns, of a source among several only its own. */
function namesOf(data, module, end, kind) {
  const [which, start, size] =
    end === "rows"
      ? [module.rows, module.row_start ?? 0, module.shape?.[0]]
      : [module.columns, module.column_start ?? 0, module.shape?.[1]];
  if (which === "output") return ["output"];
  const names = (data[which] ?? []).map((token) =>
    tokenName(token, kind(which === "source" ? "source" : "target")),
  );
  return start === 0 && (size === undefined || size >= names.length)
    ? names
    : names.slice(start, start + size);
}

const first = (modules) => {
  const looking = modules.findLastIndex((one) => !["self", "copy"].includes(one.type));
  return looking >= 0 ? looking : modules.length - 1;
};

async function load({ side, inspect, options }) {
  const chosen =
    options.layer === undefined ? {} : { layer: options.layer, head: options.head ?? null };
  return inspect({ ...side.target(), ...chosen, ...(options.ablate ? { ablate: true } : {}) });
}

function draw(context, data) {
  const { side, inspect, options, remember, body, width } = context;
  const { modules } = data;
  const state = { layer: options.layer ?? null, head: options.head ?? null };
  const maps = new Map();
  const names = modules.map((module) =>
    ["rows", "columns"].map((end) => namesOf(data, module, end, (which) => side.kind(which))),
  ); // one list each, so that labels are drawn once
  const key = (layer, head) => `${layer}/${head}`;
  const shownLayer = () => state.layer ?? data.layer ?? first(modules);
  const several = modules.filter((one) => ["cross", "recurrent"].includes(one.type)).length > 1;
  maps.set(key(state.layer, state.head), readMatrix(data.map));

  const lines = new Lines({
    label: "attention as lines",
    look: (end, index) =>
      look(end === "row" ? index : null, end === "column" ? index : null, "lines"),
  });
  const heat = new HeatMap({
    label: "attention as a heat map: rows look at columns; move with the arrow keys",
    look: (row, column) => look(row, column, "heat"),
  });
  const facts = el("p", { class: "facts" });
  const covered = el("p", {
    class: "coverage",
    dir: "auto",
    "aria-label": "coverage: how much each token was looked at in all",
  });
  const layers = choice(
    [
      ...(several ? [["", "mean of all that look at the source"]] : []),
      ...modules.map((module, i) => [
        i,
        `${nameOf(module, modules)} · ${KINDS[module.type] ?? module.type}`,
      ]),
    ],
    state.layer ?? (several ? "" : shownLayer()),
    (value) => pick(value === "" ? null : Number(value), null),
    "layer",
  );
  const heads = el("span");
  const grid =
    modules.reduce((sum, module) => sum + module.heads, 0) > 1
      ? new Grid(
          modules,
          (layer, head) => pick(layer, head),
          (layer, head) => fetchMap(layer, head).catch(() => {}),
        )
      : null;
  const controls = el(
    "div",
    { class: "controls", "data-no-export": true },
    field("Layer", layers),
    heads,
  );
  if (!options.ablate && grid)
    controls.append(
      el(
        "button",
        {
          type: "button",
          class: "quiet",
          title: "Scores the answer again without each head: takes a moment",
          on: {
            click: () => {
              remember({ ablate: true });
              context.again();
            },
          },
        },
        "Which heads matter?",
      ),
    );

  function look(row, column, from) {
    if (from !== "heat") heat.light(row, column);
    if (from !== "lines")
      lines.light(row !== null ? "row" : column !== null ? "column" : null, row ?? column);
    const module = modules[shownLayer()];
    if (from !== "answer" && module?.rows === "target")
      side.look(row === null ? null : "target", row === null ? null : row - given());
  }
  // of a language model the rows before the answer's are the prompt's
  const given = () =>
    side.run.task === "language"
      ? names[shownLayer()][0].length - 1 - (side.prediction?.tokens?.length ?? 0)
      : 0;
  side.onLook((kind, index) => {
    if (modules[shownLayer()]?.rows === "target")
      look(kind === "target" && index !== null ? index + given() : null, null, "answer");
  }, "view");

  async function fetchMap(layer, head) {
    const at = key(layer, head);
    if (maps.has(at)) return maps.get(at);
    const found = await inspect({ ...side.target(), layer, head, thumbs: false });
    if (maps.size >= KEPT) maps.delete(maps.keys().next().value);
    const matrix = readMatrix(found.map);
    maps.set(at, matrix);
    return matrix;
  }

  async function pick(layer, head) {
    Object.assign(state, { layer, head });
    remember({ layer, head });
    const at = key(layer, head);
    redrawControls();
    grid?.select(layer, head);
    try {
      const matrix = await fetchMap(layer, head);
      if (key(state.layer, state.head) === at) show(matrix);
    } catch (error) {
      if (error.name !== "AbortError") facts.textContent = error.message;
    }
  }

  function redrawControls() {
    layers.value = state.layer ?? (several ? "" : shownLayer());
    const module = modules[layers.value === "" ? -1 : shownLayer()];
    heads.replaceChildren(
      module && module.heads > 1
        ? field(
            "Head",
            choice(
              [
                ["", "mean of all heads"],
                ...Array.from({ length: module.heads }, (_, h) => [h, String(h + 1)]),
              ],
              state.head ?? "",
              (value) => pick(shownLayer(), value === "" ? null : Number(value)),
              "head",
            ),
          )
        : "",
    );
  }

  function show(matrix) {
    const module = modules[shownLayer()];
    const [rows, columns] = names[shownLayer()];
    lines.draw(matrix, rows, columns);
    heat.draw(matrix, rows, columns, heatWidth());
    const sums = new Float32Array(matrix.columns);
    const { values } = matrix;
    for (let i = 0, c = 0; i < values.length; i++) {
      sums[c] += values[i];
      if (++c === sums.length) c = 0;
    }
    const most = Math.max(...sums, 1e-9);
    if (covered.columns !== columns)
      covered.replaceChildren(
        el("span", { class: "label" }, "Coverage"),
        ...columns.slice(0, 200).flatMap((name) => [" ", el("span", {}, name)]),
      );
    covered.columns = columns;
    covered.querySelectorAll("span:not(.label)").forEach((span, c) => {
      span.style.setProperty("--weight", (sums[c] / most).toFixed(3));
      span.title = number(sums[c]);
    });
    const what = [
      state.layer === null && several ? "mean of the layers" : nameOf(module, modules),
      state.head === null
        ? module.heads > 1
          ? `mean of ${module.heads} heads`
          : null
        : `head ${state.head + 1}`,
    ];
    if (state.head !== null) what.push(`entropy ${number(module.entropy?.[state.head])}`);
    if (state.head !== null && module.importance)
      what.push(`without it the score changes by ${number(module.importance[state.head], 3)}`);
    facts.textContent = what.filter(Boolean).join(" · ");
    announce(facts.textContent);
    performance.mark("attention");
  }

  const heatWidth = () => {
    const wide = width();
    if (wide < 760) return wide;
    return Math.max(
      320,
      wide - (grid ? grid.node.offsetWidth + 28 : 0) - lines.node.offsetWidth - 30,
    );
  };
  body.append(
    controls,
    el(
      "div",
      { class: "exhibit" },
      grid?.node ?? null,
      lines.node,
      el("div", { class: "beside" }, heat.node),
    ),
    facts,
    covered,
  );
  grid?.select(state.layer, state.head);
  redrawControls();
  show(maps.get(key(state.layer, state.head)));
}

/** All heads, small: a row a layer, a column a head; the name of a row is the mean of its heads. */
class Grid {
  constructor(modules, pick, peek) {
    Object.assign(this, { modules, pick });
    const most = Math.max(...modules.map((module) => module.heads));
    this.size = most > 12 ? 15 : most > 8 ? 18 : most > 4 ? 24 : 30;
    this.gap = most > 12 ? 2 : 3;
    this.left = 76;
    this.pitch = this.size + this.gap;
    this.width = this.left + most * this.pitch;
    this.height = modules.length * this.pitch;
    this.at = [0, 0];
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "application",
      "aria-label": "all heads; arrow keys move, Enter chooses",
      style: { width: `${this.width}px`, height: `${this.height}px` },
      on: {
        pointermove: (event) => this.hover(event, peek),
        pointerleave: () => this.mark(null),
        click: (event) => {
          const found = this.find(event);
          if (found) pick(...found);
        },
        keydown: (event) => this.key(event),
      },
    });
    this.said = el("p", { class: "readout" }, " ");
    this.node = el("div", { class: "grid" }, this.canvas, this.said);
    this.chosen = [null, null];
    this.paint();
  }

  /** The maps and names, once. */
  thumbs(dense) {
    const sheet = document.createElement("canvas");
    sheet.width = this.width * dense;
    sheet.height = this.height * dense;
    const context = sheet.getContext("2d");
    context.scale(dense, dense);
    context.imageSmoothingEnabled = false;
    const small = document.createElement("canvas");
    const brush = small.getContext("2d");
    const soft = ink("soft");
    const importance = Math.max(
      0,
      ...this.modules.flatMap((module) => (module.importance ?? []).map(Math.abs)),
    );
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    context.strokeStyle = context.fillStyle = soft;
    context.lineWidth = 0.4;
    this.modules.forEach((module, l) => {
      const y = l * this.pitch;
      context.fillText(nameOf(module, this.modules), 0, y + this.size / 2, this.left - 6);
      (module.thumbs ?? []).forEach((thumb, h) => {
        const matrix = readMatrix(thumb);
        const x = this.left + h * this.pitch;
        small.width = Math.max(1, matrix.columns);
        small.height = Math.max(1, matrix.rows);
        if (matrix.values.length) brush.putImageData(pixels(brush, matrix), 0, 0);
        if (importance)
          context.globalAlpha =
            0.15 + 0.85 * Math.min(1, Math.abs(module.importance?.[h] ?? 0) / importance);
        context.drawImage(small, x, y, this.size, this.size);
        context.globalAlpha = 1;
        context.strokeRect(x, y, this.size, this.size);
      });
    });
    return sheet;
  }

  /** The sheet, and a frame around what is chosen. */
  paint() {
    const dense = Math.max(2, devicePixelRatio);
    this.sheet ??= this.thumbs(dense);
    this.canvas.width = this.sheet.width;
    this.canvas.height = this.sheet.height;
    const context = this.canvas.getContext("2d");
    context.drawImage(this.sheet, 0, 0);
    const [layer, head] = this.chosen;
    if (layer === null) return;
    context.scale(dense, dense);
    context.strokeStyle = ink("accent");
    context.lineWidth = 2;
    const heads = head === null ? this.modules[layer].heads : 1;
    context.strokeRect(
      this.left + (head ?? 0) * this.pitch,
      layer * this.pitch + 1,
      (heads - 1) * this.pitch + this.size,
      this.size - 2,
    );
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const layer = Math.floor((event.clientY - box.top) / this.pitch);
    const head = Math.floor((event.clientX - box.left - this.left) / this.pitch);
    const module = this.modules[layer];
    if (!module || head >= module.heads) return null;
    return [layer, head < 0 ? null : head];
  }

  hover(event, peek) {
    const found = this.find(event);
    this.mark(found);
    clearTimeout(this.resting);
    if (found) this.resting = setTimeout(() => peek(...found), 60);
  }

  mark(found) {
    this.canvas.style.cursor = found ? "pointer" : "default";
    if (!found) return (this.said.textContent = " ");
    const [layer, head] = found;
    const module = this.modules[layer];
    const matters =
      head !== null && module.importance ? `, matters ${number(module.importance[head], 3)}` : "";
    this.said.textContent = `${nameOf(module, this.modules)}, ${head === null ? "mean" : `head ${head + 1}, entropy ${number(module.entropy?.[head])}`}${matters}`;
  }

  key(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      event.key
    ];
    if (!move) return;
    event.preventDefault();
    const layer = Math.max(0, Math.min(this.modules.length - 1, (this.chosen[0] ?? 0) + move[0]));
    const head = Math.max(
      -1,
      Math.min(this.modules[layer].heads - 1, (this.chosen[1] ?? -1) + move[1]),
    );
    this.pick(layer, head < 0 ? null : head);
  }

  select(layer, head) {
    this.chosen = [layer, head];
    this.paint();
  }
}

export const view = { load, draw };
