// Views that are the text itself: surprisal as bars over the tokens, saliency as their ground; and gradient flow.

import { choice, el, field, joined, number, percent, shown, tokenName } from "./dom.js";
import { HeatMap } from "./heat.js";
import { lineChart } from "./chart.js";
import { readMatrix } from "./matrix.js";
import { asToken } from "./results.js";
import { END, bars, popover, surprise, textOf } from "./tokens.js";

const BAR = 46; // pixels of the tallest bar

export const surprisal = {
  async load({ side, inspect, settings }) {
    const own = side.prediction;
    if (side.run.task !== "language" && own?.tokens?.length)
      return { kind: "tokens", text: own.text, score: own.score, tokens: own.tokens };
    return inspect(
      side.run.task === "language"
        ? { complete: false }
        : side.run.searches
          ? { ...settings(), ...(side.prefix ? { prefix: side.prefix } : {}) }
          : {},
    );
  },

  draw({ body, side }, data) {
    const tokens = data.tokens.map(asToken);
    const bits = tokens.map((token) => -token.log_p / Math.LN2);
    const most = Math.max(4, ...bits);
    const text = el("p", { class: "surprisal", dir: "auto" });
    tokens.forEach((token, i) => {
      const ends = token.prefix === null || END.test(token.text);
      const written = ends ? "∎" : textOf(tokens, i, token, side.kind("target"));
      const one = el(
        "button",
        {
          type: "button",
          class: "column",
          style: { "--surprise": surprise(token.log_p).toFixed(3) },
          "aria-label": `${ends ? "end" : tokenName(written)}: ${number(bits[i], 1)} bits`,
          on: {
            click: () =>
              popover(
                one,
                "alternatives",
                el(
                  "p",
                  { class: "facts" },
                  `${number(bits[i], 1)} bits · ${percent(Math.exp(token.log_p))}`,
                ),
                bars(
                  token.alternatives.map((other) => ({
                    text: END.test(other.text) ? "end" : tokenName(other.text, side.kind("target")),
                    value: Math.exp(other.log_p),
                    of: 1,
                    chosen: other.text === token.text,
                  })),
                  { label: "the likeliest here" },
                ),
              ),
          },
        },
        el(
          "span",
          { class: "bits", "aria-hidden": "true" },
          el("i", { style: { height: `${(BAR * bits[i]) / most}px` } }),
        ),
        el("span", { class: "written" }, /^\s*$/.test(written) ? "␣" : shown(written.trim())),
        el("span", { class: "amount", "aria-hidden": "true" }, number(bits[i], 1)),
      );
      if (/^\s/.test(written) && i > 0) text.append(el("span", { class: "gap" }, " "));
      text.append(one);
    });
    const mean = bits.reduce((sum, x) => sum + x, 0) / Math.max(1, bits.length);
    const what = side.run.task === "language" ? "the text above" : "the answer";
    body.append(
      text,
      el(
        "p",
        { class: "facts" },
        `${what}: ${tokens.length} tokens · log p ${number(data.score)} · ${number(mean)} bits a token · perplexity ${number(2 ** mean)}`,
      ),
    );
  },
};

const METHODS = [
  ["gradient", "gradient × input"],
  ["integrated", "integrated gradients"],
  ["occlusion", "leaving each token out"],
];

export const saliency = {
  load({ side, inspect, options }) {
    const target = side.target();
    const position =
      options.position === undefined || options.position === null
        ? {}
        : { position: options.position };
    return inspect({ method: options.method ?? "gradient", ...target, ...position });
  },

  draw(context, data) {
    const { body, options, remember, again, side } = context;
    const names = joined(data.tokens, side.kind("source"));
    const said =
      Array.isArray(data.target) && data.target.length > 1
        ? data.target.map((token) => tokenName(token, side.kind("target")))
        : [];
    const most = Math.max(1e-12, ...data.scores.map(Math.abs));
    const controls = el(
      "div",
      { class: "controls", "data-no-export": true },
      field(
        "Method",
        choice(
          METHODS,
          options.method ?? "gradient",
          (method) => {
            remember({ method });
            again();
          },
          "method",
        ),
      ),
      said.length
        ? field(
            "Explains",
            choice(
              [["", "the whole answer"], ...said.map((name, i) => [i, `${i + 1} ${name}`])],
              options.position ?? "",
              (value) => {
                remember({ position: value === "" ? null : Number(value) });
                again();
              },
              "what is explained",
            ),
          )
        : null,
    );
    const text = el(
      "p",
      { class: "salient", dir: "auto" },
      names.flatMap(([name, blank], i) => {
        const score = data.scores[i] ?? 0;
        return [
          blank ? " " : "",
          el(
            "span",
            {
              class: score < 0 ? "against" : "for",
              style: { "--weight": (Math.abs(score) / most).toFixed(3) },
              title: number(score, 4),
              tabindex: 0,
              "aria-label": `${name}: ${number(score, 3)}`,
            },
            name,
          ),
        ];
      }),
    );
    const ranked = names
      .map(([name], i) => [name, data.scores[i] ?? 0])
      .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
      .slice(0, 8);
    const rows = el(
      "table",
      { class: "ranked" },
      el(
        "tbody",
        {},
        ranked.map(([name, score]) =>
          el(
            "tr",
            {},
            el("th", { scope: "row", dir: "auto" }, name),
            el(
              "td",
              {},
              el("span", {
                class: `signed ${score < 0 ? "against" : "for"}`,
                style: { "--weight": (Math.abs(score) / most).toFixed(3) },
              }),
            ),
            el("td", { class: "value" }, number(score, 3)),
          ),
        ),
      ),
    );
    const facts = [];
    const explained =
      options.position === undefined || options.position === null
        ? data.text
        : said[options.position];
    if (explained) facts.push("explains ", el("b", { dir: "auto" }, shown(String(explained))));
    if (data.completeness_error !== undefined && data.completeness_error !== null)
      facts.push(
        `${facts.length ? " · " : ""}completeness error ${number(data.completeness_error, 4)}`,
      );
    if (data.network) facts.push(`${facts.length ? " · " : ""}${data.network}`);
    body.append(
      controls,
      text,
      el(
        "p",
        { class: "legend" },
        el("span", { class: "for", style: { "--weight": "1" } }, "speaks for it"),
        " ",
        el("span", { class: "against", style: { "--weight": "1" } }, "speaks against it"),
      ),
      rows,
      el("p", { class: "facts" }, facts),
    );
  },
};

export const flow = {
  load: ({ side, inspect }) => inspect(side.target()),

  draw({ body, width, side }, data) {
    const most = Math.max(1e-12, ...data.inputs);
    const names = joined(data.tokens, side.kind("source"));
    body.append(
      el("h3", {}, "How much the loss depends on each input"),
      el(
        "p",
        { class: "salient", dir: "auto" },
        names.flatMap(([name, blank], i) => [
          blank ? " " : "",
          el(
            "span",
            {
              class: "for",
              style: { "--weight": ((data.inputs[i] ?? 0) / most).toFixed(3) },
              title: number(data.inputs[i], 4),
            },
            name,
          ),
        ]),
      ),
      lineChart({
        lines: [
          { points: data.inputs.map((value, i) => [i + 1, value]), dots: data.inputs.length < 60 },
        ],
        width: Math.min(width(), 720),
        height: 170,
        label: "the norm of the gradient at each position",
        x: "position",
      }),
      ...(data.network ? [el("p", { class: "facts" }, data.network)] : []),
    );
    if (!data.states)
      return body.append(
        el(
          "p",
          { class: "hint" },
          "This network is not recurrent: no state is handed from position to position.",
        ),
      );
    if (data.by_distance?.length > 1)
      body.append(
        el("h3", {}, "How much is left of a gradient after so many steps"),
        lineChart({
          lines: [
            {
              points: data.by_distance.map((value, i) => [i, value ?? NaN]),
              dots: data.by_distance.length < 60,
            },
          ],
          width: Math.min(width(), 720),
          height: 170,
          label: "the norm of the gradient by distance",
          x: "steps back",
        }),
      );
    const heat = new HeatMap({ label: "how much each state depends on each earlier one", max: 22 });
    body.append(
      el("h3", {}, "How much a state (row) still depends on an earlier one (column)"),
      heat.node,
    );
    const matrix = readMatrix(data.states);
    const steps = data.steps.map((token) =>
      tokenName(token, side.kind(data.module?.startsWith("decoder") ? "target" : "source")),
    );
    heat.draw(
      matrix,
      data.rows.map((row) => steps[row] ?? ""),
      steps,
      Math.min(width(), 640),
    );
  },
};
