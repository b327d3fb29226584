// Words as vectors: neighbours, analogies, a map; and the vectors of positions.

import * as api from "./api.js";
import { button, cut, debounce, el, number, piece, svg, tokenName } from "./dom.js";
import { HeatMap } from "./heat.js";
import { readMatrix } from "./matrix.js";
import { bars } from "./tokens.js";

const MANY = 15; // neighbours

const similar = (rows, pick) =>
  bars(
    rows.map((row) => ({
      text: row.name ?? row.text,
      raw: row.text,
      value: row.similarity,
      of: 1,
    })),
    { format: (x) => number(x, 3), pick, label: "nearest words" },
  );

export const words = {
  async load({ side, options, signal }) {
    const { word, a, b, c } = options;
    const found = {
      kind: "vectors",
      word: word ?? "",
      neighbours: null,
      analogy: null,
      problem: "",
    };
    try {
      if (word) found.neighbours = (await api.neighbours(side.run.name, word, MANY, signal)).words;
      if (a && b && c)
        found.analogy = (await api.analogy(side.run.name, a, b, c, MANY, signal)).words;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      found.problem = error.message;
    }
    return found;
  },

  draw(context, data) {
    const { body, options, remember } = context;
    const reask = debounce(async () => {
      const held = document.activeElement?.dataset?.name;
      context.data = await words.load(context);
      if (context.signal.aborted) return;
      body.replaceChildren();
      words.draw(context, context.data);
      const box = held && body.querySelector(`[data-name="${held}"]`);
      if (box) {
        box.focus();
        box.setSelectionRange(box.value.length, box.value.length);
      }
    }, 300);
    const box = (name, label) => {
      const input = el("input", {
        type: "text",
        "data-name": name,
        value: options[name] ?? "",
        "aria-label": label,
        placeholder: label,
        autocomplete: "off",
        spellcheck: "false",
        on: {
          input: () => {
            remember({ [name]: input.value.trim() || null });
            reask();
          },
        },
      });
      return input;
    };
    const take = (row) => {
      remember({ word: row.raw });
      reask.now();
    };
    body.append(
      el(
        "div",
        { class: "pair" },
        el(
          "section",
          { "aria-label": "neighbours" },
          el("h3", {}, "Nearest words"),
          el("p", { class: "ask" }, box("word", "a word")),
          data.neighbours ? similar(data.neighbours, take) : null,
        ),
        el(
          "section",
          { "aria-label": "analogy" },
          el("h3", {}, "Analogy"),
          el(
            "p",
            { class: "ask" },
            box("a", "man"),
            " is to ",
            box("b", "king"),
            " as ",
            box("c", "woman"),
            " is to",
          ),
          data.analogy ? similar(data.analogy, take) : null,
        ),
      ),
    );
    if (data.problem) body.append(el("p", { class: "problem", role: "alert" }, data.problem));
  },
};

export const embeddings = {
  load: ({ inspect, options }) => inspect({ word: options.word ?? "", n: MANY }),

  draw(context, data) {
    const { body, options, remember, again, width, side } = context;
    const kind = side.kind("source");
    const name = (text) =>
      tokenName(text, kind) + (kind === "bpe" && !piece(text, kind).after ? "·" : ""); // the word goes on
    const input = el("input", {
      type: "text",
      value: options.word ?? "",
      placeholder: "a token",
      "aria-label": "token",
      autocomplete: "off",
      spellcheck: "false",
      on: {
        change: () => {
          remember({ word: input.value.trim() || null });
          again();
        },
      },
    });
    const pick = (row) => {
      remember({ word: row.raw ?? row.text });
      again();
    };
    const list = el(
      "section",
      {},
      el("h3", {}, "Nearest tokens"),
      el(
        "p",
        { class: "ask" },
        input,
        button(
          "Find",
          () => {
            remember({ word: input.value.trim() || null });
            again();
          },
          { class: "quiet" },
        ),
      ),
      data.neighbours?.length
        ? similar(
            data.neighbours.map((row) => ({ ...row, name: name(row.text) })),
            pick,
          )
        : el("p", { class: "hint" }, "Write a token, or take one from the map."),
    );
    body.append(
      el(
        "div",
        { class: "pair map" },
        list,
        data.points?.length
          ? starMap(
              data.points.map((point) => ({ ...point, name: name(point.text) })),
              data.neighbours ?? [],
              options.word,
              Math.min(width() > 760 ? width() - 340 : width(), 760),
              pick,
            )
          : null,
      ),
    );
  },
};

/** Tokens where their vectors fall in the plane; a label where there is room for it. */
function starMap(points, near, word, wide, pick) {
  const tall = Math.round(wide * 0.72);
  const range = (key) => [
    points.reduce((low, p) => Math.min(low, p[key]), Infinity),
    points.reduce((high, p) => Math.max(high, p[key]), -Infinity),
  ];
  const [[x0, x1], [y0, y1]] = [range("x"), range("y")];
  const marked = new Set([word, ...near.map((one) => one.text)]);
  const root = svg("svg", {
    class: "stars",
    width: wide,
    height: tall,
    viewBox: `0 0 ${wide} ${tall}`,
    role: "img",
    "aria-label": "a map of frequent tokens",
  });
  const taken = new Set();
  const sorted = [...points].sort((a, b) => marked.has(b.text) - marked.has(a.text));
  for (const point of sorted) {
    const x = 30 + ((point.x - x0) / (x1 - x0 || 1)) * (wide - 90);
    const y = 12 + ((point.y - y0) / (y1 - y0 || 1)) * (tall - 24);
    const lit = marked.has(point.text);
    const spot = svg(
      "g",
      { class: lit ? "lit" : "", on: { click: () => pick(point) } },
      svg("circle", { cx: x, cy: y, r: lit ? 3 : 1.6 }),
    );
    const cells = [];
    for (let k = 0; k < 1 + Math.ceil((point.name.length * 7) / 24); k++)
      cells.push(`${Math.round(x / 24) + k}/${Math.round(y / 13)}`);
    if (lit || !cells.some((cell) => taken.has(cell))) {
      cells.forEach((cell) => taken.add(cell));
      spot.append(svg("text", { x: x + 5, y, "dominant-baseline": "central" }, cut(point.name)));
    }
    root.append(spot);
  }
  return root;
}

export const positions = {
  load: ({ inspect }) => inspect({}),

  draw({ body, width }, data) {
    const half = width() > 900 ? (width() - 40) / 2 : width();
    const pair = el("div", { class: "pair even" });
    body.append(pair);
    for (const [title, json, label] of [
      ["Vectors: a row a position", data.matrix, "the vectors of positions"],
      ["Likeness of two positions", data.gram, "inner products of positions"],
    ]) {
      if (!json) continue;
      const heat = new HeatMap({ label });
      pair.append(el("section", {}, el("h3", {}, title), heat.node));
      heat.draw(readMatrix(json), [], [], Math.min(half, 520));
    }
  },
};
